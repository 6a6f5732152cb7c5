"""One watched namespace: its policy, its ``done`` list, and what is due in it."""

from dataclasses import replace
from functools import partial
from math import inf

from common.context import Context
from common.tracking.completion import Completions, CompletionSource
from penstock.base.encoding import decoded
from penstock.base.errors import Stale
from penstock.base.keys import Keys
from penstock.tracking.policy import Policy
from penstock.tracking.record import touch
from services.monitor.done import parse_done
from services.monitor.reply_lists import ReplyListExpiry
from services.monitor.settings import Settings
from services.monitor.sweep import Sweeper


class WatchedNamespace:
    """Sweeps a namespace and finishes its messages; does nothing while it has no policy: no message was tracked."""

    def __init__(self, context: Context[Settings], namespace: str) -> None:
        self._context, self._keys = context, Keys(namespace)
        self._pending = context.pending(context.settings.pending_of(namespace))
        self._done = context.beside(f"done {namespace}")
        self._sweeper, self._reply_lists = Sweeper(context, self._keys), ReplyListExpiry(context, self._keys)
        self._policy: Policy | None = None

    async def sweep(self) -> float:
        """Carry out a batch of what is due; return the seconds until more is."""
        known, self._policy = self._policy, await Policy.read(self._context.redis, self._keys)
        if known and self._policy and self._terms(self._policy) != self._terms(known):
            await self._done.wake()
        if not self._policy:
            return inf
        return min(await self._sweeper.sweep(self._policy), await self._reply_lists.expire())

    @property
    def swept_at(self) -> float:
        """When the last sweep began, in seconds since the epoch by the server's clock; infinite without a policy."""
        return self._sweeper.swept_at if self._policy else inf

    async def finish(self) -> None:
        """Carry out the entries of the policy's ``done`` list until the run ends."""
        terms, finisher = None, None
        while self._context.running:
            if self._policy is None:
                await self._context.pause(0.1)
                continue
            if finisher is None or terms != self._terms(self._policy):
                terms = place, done_by = self._terms(self._policy)
                finisher = Completions(self._done, place, partial(parse_done, done_by=done_by), self._touch)
                await finisher.deliver()
            elif await finisher.take(self._context.settings.pop_timeout):
                await finisher.deliver()

    def _terms(self, policy: Policy) -> tuple[CompletionSource, str]:
        """Return where entries come from, and what plain text in them means."""
        settings, keys = self._context.settings, self._keys
        place = CompletionSource(keys, policy.done, self._pending, settings.batch, settings.batch_bytes, policy.history)
        return replace(place, accept_late=policy.accept_late, totals=True), policy.done_by

    async def _touch(self, id: bytes, seconds: float, attempt: str) -> bool:
        """Extend the deadline of a message; return False if ``attempt`` is not the current one."""
        try:
            await touch(self._context.redis, self._keys, decoded(id), seconds, attempt)
        except Stale:
            return False
        return True
