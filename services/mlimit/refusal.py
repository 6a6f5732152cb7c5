"""A limit whose surplus does not wait: it is dropped, buried, moved to a list, or answered with status 429."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from common.context import Context
from common.registered_lists import RegisteredLists
from common.tracking.reply_lists import ReplyRules
from penstock.core.script import Script
from services.mlimit.limit import LUA, limit
from services.mlimit.request import Limited, reader, too_many
from services.mlimit.settings import Settings

_admit: Final = Script.read(LUA / "admit.lua")
OVER: Final = "rateLimit"
"""The reason of a dead letter."""


class Refusal:
    """Takes a token for each message, and settles messages by whether they got one.

    A crash between the two costs tokens, and no message.
    """

    def __init__(self, context: Context[Settings]) -> None:
        settings, keys = context.settings, context.required_keys
        self._context, self._settings = context, settings
        self._read = reader(settings.by, settings.field)
        directory = RegisteredLists(context.redis, keys, context.log)
        own = (settings.in_, settings.out)
        self._replies = ReplyRules(keys, settings.replies, own, (settings.pending,), directory)

    async def run(self) -> None:
        """Settle batch after batch until the run ends."""
        context, settings = self._context, self._settings
        async for batch in context.batches(settings.batch, settings.batch_bytes):
            await self._replies.refresh()
            requests = [*map(self._read, batch)]
            late = [request.deadline < batch.at for request in requests]
            waits = iter(await self._admit([each for each, over in zip(requests, late, strict=True) if not over]))
            to, dead, answers = defaultdict[str, list[bytes]](list), [], defaultdict[str, list[bytes]](list)
            for message, request, is_late in zip(batch, requests, late, strict=True):
                wait = 0 if is_late else next(waits)
                if is_late:
                    dead.append((message, "expired"))
                elif not wait:
                    to[settings.out].append(message)
                elif settings.over == "list":
                    to[str(settings.over_list)].append(message)
                elif self._can_be_answered(request):
                    answers[request.reply_to].append(too_many(request, wait))
                elif settings.over != "drop":
                    dead.append((message, OVER))
            await context.settle(batch, to, dead, answers=answers, life=settings.reply_expire)

    async def _admit(self, requests: Sequence[Limited]) -> list[int]:
        """Return for each request how long it would have to wait for a token, in seconds; 0 if it got one."""
        if not requests:
            return []
        keys, places = self._context.required_keys, dict[str, int]()
        words = [places.setdefault(request.bucket, len(places) + 1) for request in requests]
        buckets = [keys.bucket_of(digest) if digest else keys.bucket for digest in places]
        waits: list[int] = await self._context.run(
            _admit, limited=keys.metric("limited"), buckets=buckets, places=words, **limit(self._settings)
        )
        return waits

    def _can_be_answered(self, request: Limited) -> bool:
        return bool(
            self._settings.over == "answer"
            and request.id
            and request.reply_to
            and not self._replies.refusal(request.reply_to)
        )
