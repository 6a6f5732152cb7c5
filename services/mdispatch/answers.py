"""Delivery of workers' answers to the reply lists of their requests."""

from collections import OrderedDict
from typing import Any, Final

from common.context import Context
from common.registered_lists import RegisteredLists
from common.tracking.completion import Completion, Completions, CompletionSource, parse_answer
from common.tracking.reply_lists import ReplyRules
from penstock.tracking.policy import Policy
from services.mdispatch.settings import Settings

MAX_REMEMBERED: Final = 10_000
"""Maximum number of requests remembered, of about 300 bytes each."""


class AnswerDelivery(Completions):
    """Moves answers from ``res`` through this instance's pending list to reply lists, and ends their records.

    A request that this instance has dispatched itself is remembered, which saves the round trip to identify it.
    """

    def __init__(self, context: Context[Settings], res: str) -> None:
        settings = context.settings
        source = CompletionSource(
            context.required_keys,
            res,
            context.pending(settings.pending_for("res")),
            settings.batch,
            settings.batch_bytes,
            settings.event_capacity,
            settings.reply_expire,
            settings.reply_to or "",
            settings.accept_late,
        )
        super().__init__(context, source, parse_answer, replies=reply_rules(context))
        self._remembered: OrderedDict[bytes, tuple[bytes, bytes, str, int]] = OrderedDict()

    def remember(self, xid: bytes, id: int, reply_to: str) -> None:
        """Remember a request that is about to be dispatched; of several with the same xid, the oldest."""
        self._remembered.setdefault(xid, (b"%d" % id, b"", reply_to, 0))
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)

    def _recall(self, said: list[Completion]) -> list[Any]:
        recalled = [self._remembered.pop(one.xid, None) for one in said]
        allowed = all(words and not self._refusal(words[2]) for words in recalled)
        return [word for words in recalled for word in words or ()] if allowed else []


def reply_rules(context: Context[Settings]) -> ReplyRules:
    """Return which lists may get answers by the settings, as monitors read it from the policy."""
    keys = context.required_keys
    policy = Policy.parse(keys, {name: str(value) for name, value in context.settings.policy().items()})
    assert policy
    return ReplyRules.of(keys, policy, RegisteredLists(context.redis, keys, context.log))
