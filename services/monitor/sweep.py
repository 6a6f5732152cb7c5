"""What is due in one namespace: time-outs, retries, dead letters, delayed messages, records that are gone."""

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from common.context import FULL, Context
from common.registered_lists import RegisteredLists
from common.tracking.reply_lists import ReplyRules
from common.transaction import REFUSED
from penstock.encoding import decoded, encoded
from penstock.keys import Keys
from penstock.raw_connection import pack
from penstock.script import Script
from penstock.tracking.policy import Policy, untaken_check_interval
from services.monitor.settings import Settings

_due, _clock, _sweep = (
    Script.read(Path(__file__).parent / "lua" / f"{verb}.lua") for verb in ("due", "clock", "sweep")
)
FIELDS: Final = ("xid", "attempt", "queue", "replyTo", "error", "final", "delivered", "timestamp")
FEW: Final = 8
"""Messages that nobody has taken which are looked for in their list at a time."""
CLOCKS: Final = 200
"""Messages of which one script starts the clocks at most, and as many that it looks at: some 5 ms of the server's."""


class Due(NamedTuple):
    """What ``due.lua`` has found."""

    wait: bytes
    taken: list[bytes]
    untaken: list[bytes]
    overdue: list[bytes]
    ready: list[bytes]
    now: bytes
    unseen: int


class Subject(NamedTuple):
    """A message as its record has it; without a record the other fields are None."""

    id: bytes
    xid: bytes | None = None
    attempt: bytes | None = None
    queue: bytes | None = None
    reply_to: bytes | None = None
    error: bytes | None = None
    final: bytes | None = None
    delivered: bytes | None = None
    timestamp: bytes | None = None

    @property
    def seen(self) -> bytes:
        """What the script compares to know whether anything has changed."""
        error, final = (b"" if field is None else letter for field, letter in ((self.error, b"e"), (self.final, b"f")))
        return (self.attempt or b"") + error + final


class Plan(NamedTuple):
    """What is to be done with a message: an action of ``sweep.lua``, after ``wait`` seconds."""

    subject: Subject
    action: str
    wait: float = 0


class Sweep:
    """Any number of monitors may sweep: the script acts on what is still due, in the attempt that was looked at."""

    def __init__(self, context: Context[Settings], keys: Keys) -> None:
        self._context, self._keys = context, keys
        self._record, self._xid = encoded(keys.message("")), encoded(keys.xid(""))
        self.looked_at = inf
        self._policy: Policy | None = None

    async def act(self, policy: Policy) -> float:
        """Do what is due, a batch of it; seconds until more is, infinite where nothing is to come."""
        if policy != self._policy:
            directory = RegisteredLists(self._context.redis, self._keys, self._context.log)
            self._policy, self._replies = policy, ReplyRules(self._keys, policy, directory)
        due = await self._ask(policy)
        self.looked_at = float(due.now)
        ids = due.taken[:CLOCKS], due.untaken, due.overdue[:CLOCKS], due.ready
        known = iter(await self._read([id for each in ids for id in each]))
        taken, untaken, overdue, ready = ([next(known) for _ in each] for each in ids)
        again, late = (
            await self._start_clocks(taken, untaken[:FEW], overdue, policy) if due.unseen or overdue else (0, [])
        )
        plans = [self._plan(one, policy) for one in late]
        plans += [Plan(one, "expired" if one.attempt is None else "deliver") for one in ready]
        hopeless = [Plan(one, "queueTimeout") for one in untaken if _has_waited(one, self.looked_at, policy)]
        acted = await self._do([*plans, *hopeless], policy) if plans or hopeless else 0
        if again is REFUSED or acted is REFUSED:
            return FULL
        if again or taken or overdue or plans or acted:
            return 0
        return min(float(due.wait or inf), untaken_check_interval(policy.timeout) if due.unseen else inf)

    async def _ask(self, policy: Policy) -> Due:
        keys, batch = self._keys, self._context.settings.batch
        return Due(
            *await self._context.ask(
                _due,
                deadlines=keys.deadlines,
                delayed=keys.delayed,
                queue=policy.out,
                pushed=keys.pushed,
                looks=keys.looks,
                batch=batch,
                oldest=batch if policy.queue_timeout else FEW,
            )
        )

    async def _read(self, ids: list[bytes]) -> list[Subject]:
        if not ids:
            return []
        await self._context.wire.send(pack([("HMGET", self._record + id, *FIELDS) for id in ids]))
        records: list[Any] = await self._context.wire.receive(len(ids))
        spoilt = [isinstance(record, ResponseError) for record in records]
        return [
            Subject(id) if bad else Subject(id, *record) for id, record, bad in zip(ids, records, spoilt, strict=True)
        ]

    async def look(self, policy: Policy) -> None:
        """Note how far the list of the workers has been taken."""
        await self._start_clocks([], [], [], policy)

    async def _start_clocks(
        self, taken: list[Subject], untaken: list[Subject], overdue: list[Subject], policy: Policy
    ) -> tuple[Any, list[Subject]]:
        """Return whether to look again at once, and those of ``overdue`` whose clock has run out."""
        keys, subjects = self._keys, [*taken, *untaken, *overdue]
        outcome = await self._context.run_unless_full(
            _clock,
            deadlines=keys.deadlines,
            queue=policy.out,
            pushed=keys.pushed,
            looks=keys.looks,
            overdue=keys.metric("overdue"),
            subjects=[key for one in subjects for key in (self._record + one.id, self._xid + (one.xid or b""))],
            timespan=policy.timeout,
            expire=policy.expire,
            every=untaken_check_interval(policy.timeout),
            ids=[one.id for one in subjects],
        )
        if outcome is REFUSED:
            return REFUSED, []
        return outcome[0], [subjects[place - 1] for place in outcome[1:]]

    def _plan(self, one: Subject, policy: Policy) -> Plan:
        """What becomes of a message that is past its deadline."""
        if one.attempt is None:
            return Plan(one, "expired")
        if one.final or int(one.attempt) >= policy.attempts:
            return Plan(one, "timeout" if one.error is None else "failed")
        return Plan(one, "retry", policy.backoff.delay_after(int(one.attempt)))

    async def _do(self, plans: Sequence[Plan], policy: Policy) -> Any:
        keys = self._keys
        await self._replies.refresh()
        subjects: list[bytes | str] = []
        messages: list[bytes | str] = []
        for one, action, wait in plans:
            key = self._record + one.id
            answer = self._answer(one.reply_to, policy) or key
            subjects += (key, self._xid + (one.xid or b""), one.queue or policy.out, answer)
            messages += (one.id, one.seen, action, f"{wait:.3f}")
        return await self._context.run_unless_full(
            _sweep,
            subjects=subjects,
            messages=messages,
            **{name: keys.metric(name) for name in ("delivered", "timeout", "retry", "dead", "expired")},
            deadlines=keys.deadlines,
            delayed=keys.delayed,
            out=policy.out,
            pushed=keys.pushed,
            ids=keys.message_ids,
            **keys.event_keys,
            **keys.answer_keys,
            letters=keys.dead,
            timespan=policy.timeout,
            expire=policy.expire,
            life=policy.reply_expire,
            lasting=self._replies.lasting_words,
            history=policy.history,
            origin=policy.source,
            due=keys.due,
        )

    def _answer(self, reply_to: bytes | None, policy: Policy) -> bytes | str | None:
        """The list for the error of a message that dies; None if nobody wants it, or the list may not get it."""
        if not reply_to:
            return policy.reply_to
        return None if self._replies.refusal(decoded(reply_to)) else reply_to


def _has_waited(one: Subject, now: float, policy: Policy) -> bool:
    """Return True if a message that nobody has taken is to be a dead letter."""
    since = one.delivered or one.timestamp
    return bool(policy.queue_timeout) and since is not None and now - float(since) >= policy.queue_timeout
