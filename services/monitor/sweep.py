"""What is due in one namespace: time-outs, retries, dead letters, delayed messages, records that are gone."""

from math import inf
from pathlib import Path
from typing import Any, Final

from redis.exceptions import ResponseError

from common.context import FULL, REFUSED, Context
from common.directory import Directory
from common.replies import Replies
from penstock.keys import Keys
from penstock.lua import Script
from penstock.names import decoded, encoded
from penstock.policy import Policy
from penstock.wire import pack
from services.monitor.settings import Settings

_due, _sweep = (Script.read(Path(__file__).parent / "lua" / f"{verb}.lua") for verb in ("due", "sweep"))
FIELDS: Final = ("xid", "attempt", "queue", "replyTo", "error", "final")


class Sweep:
    """Any number of monitors may sweep: the script acts on what is still due, in the attempt that was looked at."""

    def __init__(self, context: Context[Settings], keys: Keys) -> None:
        self._context, self._keys = context, keys
        self._record, self._xid = encoded(keys.message("")), encoded(keys.xid(""))
        self.looked_at = inf
        self._policy: Policy | None = None

    async def act(self, policy: Policy) -> float:
        """Do what is due, a batch of it; seconds until more is, infinite where nothing is to come."""
        keys = self._keys
        wait, overdue, ready, now = await self._context.ask(
            _due, deadlines=keys.deadlines, delayed=keys.delayed, batch=self._context.settings.batch
        )
        self.looked_at = float(now)
        if policy != self._policy:
            directory = Directory(self._context.redis, keys, self._context.log)
            self._policy, self._replies = policy, Replies(keys, policy, directory)
        if ids := [*overdue, *ready]:
            await self._replies.refresh()
            subjects, messages = self._planned(ids, await self._read(ids), len(overdue), policy)
            reply = await self._context.run_unless_full(
                _sweep,
                subjects=subjects,
                messages=messages,
                **{name: keys.metric(name) for name in ("delivered", "timeout", "retry", "dead", "expired")},
                deadlines=keys.deadlines,
                delayed=keys.delayed,
                ids=keys.message_ids,
                **keys.telling,
                **keys.answering,
                letters=keys.dead,
                timespan=policy.timeout,
                expire=policy.expire,
                life=policy.reply_expire,
                lasting=self._replies.lasting_words,
                history=policy.history,
                origin=policy.source,
                due=keys.due,
            )
            return FULL if reply is REFUSED else 0
        return float(wait) if wait else inf

    async def _read(self, ids: list[bytes]) -> list[Any]:
        await self._context.wire.send(pack([("HMGET", self._record + id, *FIELDS) for id in ids]))
        return await self._context.wire.receive(len(ids))

    def _planned(
        self, ids: list[bytes], records: list[Any], overdue: int, policy: Policy
    ) -> tuple[list[bytes | str], list[bytes | str]]:
        """What the script takes: the keys of each message, and what is to be done with it."""
        subjects: list[bytes | str] = []
        messages: list[bytes | str] = []
        for place, (id, record) in enumerate(zip(ids, records, strict=True)):
            xid, attempt, queue, reply_to, error, final = (
                [None] * len(FIELDS) if isinstance(record, ResponseError) else record
            )
            action, wait = "deliver", 0.0
            if attempt is None:
                action = "expired"
            elif place < overdue:
                if final or int(attempt) >= policy.attempts:
                    action = "failed" if error is not None else "timeout"
                else:
                    action, wait = "retry", policy.backoff.after(int(attempt))
            key = self._record + id
            seen = (attempt or b"") + (b"" if error is None else b"e") + (b"" if final is None else b"f")
            subjects += (key, self._xid + (xid or b""), queue or policy.out, self._answer(reply_to, policy) or key)
            messages += (id, seen, action, f"{wait:.3f}")
        return subjects, messages

    def _answer(self, reply_to: bytes | None, policy: Policy) -> bytes | str | None:
        """The list for the error of a message that dies; None if nobody wants it, or the list may not get it."""
        if not reply_to:
            return policy.reply_to
        return None if self._replies.refusal(decoded(reply_to)) else reply_to
