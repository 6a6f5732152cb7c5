"""The way back: answers of workers to whoever asked."""

import json
from collections import OrderedDict
from typing import Any, Final

from common.context import Context
from common.registered_lists import RegisteredLists
from common.tracking.completion import Completion, Completions, CompletionSource, attempt_of
from common.tracking.reply_lists import ReplyRules
from penstock.tracking.correlation import xid_of
from penstock.tracking.policy import Policy
from services.mdispatch.settings import Settings

MOST_REMEMBERED: Final = 10_000
"""Requests, of some 300 bytes each."""


class Answers(Completions):
    """From ``res`` through this instance's pending list to the list that the request named, ending its record.

    The server need not be asked for a request that this instance has dispatched itself: that is a round trip less.
    """

    def __init__(self, context: Context[Settings]) -> None:
        settings = context.settings
        assert context.keys
        assert settings.res
        place = CompletionSource(
            context.keys,
            settings.res,
            context.pending(settings.pending_for("res")),
            settings.batch,
            settings.batch_bytes,
            settings.event_capacity,
            settings.reply_expire,
            settings.reply_to or "",
            settings.accept_late,
        )
        super().__init__(context, place, understood, replies=replies_of(context))
        self._remembered: OrderedDict[bytes, tuple[bytes, bytes, str, int]] = OrderedDict()

    def remember(self, xid: bytes, id: int, reply_to: str) -> None:
        """Note a request that is about to be dispatched, of several with the same xid the oldest."""
        self._remembered.setdefault(xid, (b"%d" % id, b"", reply_to, 0))
        if len(self._remembered) > MOST_REMEMBERED:
            self._remembered.popitem(last=False)

    def _recall(self, said: list[Completion]) -> list[Any]:
        recalled = [self._remembered.pop(one.xid, None) for one in said]
        sound = all(words and not self._refusal(words[2]) for words in recalled)
        return [word for words in recalled for word in words or ()] if sound else []


def replies_of(context: Context[Settings]) -> ReplyRules:
    """Return what the settings allow, as monitors read it from the policy."""
    assert context.keys
    policy = Policy.parse(context.keys, {name: str(value) for name, value in context.settings.policy().items()})
    assert policy
    return ReplyRules(context.keys, policy, RegisteredLists(context.redis, context.keys, context.log))


def understood(answer: bytes) -> Completion:
    """An answer is a JSON object with the request's ``meta.id``."""
    try:
        meta = json.loads(answer)["meta"]
        xid = xid_of(meta["id"])
        attempt = meta.get("attempt")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        xid, attempt = b"", None
    if not xid:
        return Completion("badAnswer", words="expected a JSON object with the request's meta.id")
    return Completion("answer", xid=xid, attempt=attempt_of(attempt) or "")
