"""The sweep of one namespace: time-outs, retries, dead letters, delayed messages, expired records."""

import json
from collections import Counter
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from redis.exceptions import ResponseError

from common.context import Context
from common.registered_lists import RegisteredLists
from common.tracking.reply_lists import ReplyRules
from common.transaction import REFUSED
from common.wired import FULL_POLL_SECONDS
from penstock.base.encoding import decoded, encoded, parse_number, parse_whole
from penstock.base.keys import Keys
from penstock.core.atomic import AtomicWrites
from penstock.core.link import describe, is_of_script
from penstock.core.raw_connection import pack
from penstock.core.script import Script
from penstock.tracking.policy import Policy, untaken_check_interval
from services.monitor.reports import Reported, Reports
from services.monitor.settings import Settings

_due, _clock, _sweep = (
    Script.read(Path(__file__).parent / "lua" / f"{verb}.lua") for verb in ("due", "clock", "sweep")
)
FIELDS: Final = ("xid", "attempt", "queue", "replyTo", "error", "final", "delivered", "timestamp", "attempts", "until")
MAX_UNTAKEN: Final = 8
"""Maximum number of messages not yet taken by a worker that one script looks for in their list."""
MAX_CLOCK_STARTS: Final = 200
"""Maximum number of taken messages, and of overdue ones, for which one script starts clocks: about 5 ms."""

MIN_HOLD, MAX_HOLD = 1.0, 30.0
"""Seconds after which a message past its deadline, of which a report waits, is looked at again."""


class DueIds(NamedTuple):
    """Reply of ``due.lua``: ids by what is due."""

    wait: bytes
    taken: list[bytes]
    untaken: list[bytes]
    overdue: list[bytes]
    ready: list[bytes]
    now: bytes
    unseen: int


class DueMessage(NamedTuple):
    """Fields of a message's record; without a record all but ``id`` are None."""

    id: bytes
    xid: bytes | None = None
    attempt: bytes | None = None
    queue: bytes | None = None
    reply_to: bytes | None = None
    error: bytes | None = None
    final: bytes | None = None
    delivered: bytes | None = None
    timestamp: bytes | None = None
    attempts: bytes | None = None
    """Maximum number of deliveries, if the message itself wants fewer than the policy."""
    until: bytes | None = None
    """When (s since the epoch) the message is useless, if it says so itself."""

    @property
    def fingerprint(self) -> bytes:
        """Value by which ``sweep.lua`` knows whether the record has changed since it was read."""
        error, final = (b"" if field is None else letter for field, letter in ((self.error, b"e"), (self.final, b"f")))
        return (self.attempt or b"") + error + final


class Action(NamedTuple):
    """Verb of ``sweep.lua`` for a message, with the seconds until a retry."""

    message: DueMessage
    verb: str
    delay: float = 0


class Sweeper:
    """Any number of monitors may sweep: the script acts on what is still due, in the attempt that was read."""

    def __init__(self, context: Context[Settings], keys: Keys) -> None:
        self._context, self._keys = context, keys
        self._record, self._xid = encoded(keys.message("")), encoded(keys.xid(""))
        self._reports = Reports(context, keys)
        self.swept_at = inf
        """When the last sweep began, in seconds since the epoch by the server's clock."""
        self._policy: Policy | None = None
        self._failures = Counter[bytes]()
        """How often the script has failed with a message, by its id."""

    async def sweep(self, policy: Policy) -> float:
        """Carry out a batch of what is due; return the seconds until more is, infinite if nothing is to come."""
        if policy != self._policy:
            directory = RegisteredLists(self._context.redis, self._keys, self._context.log)
            self._policy, self._replies = policy, ReplyRules.of(self._keys, policy, directory)
        due = await self._find_due(policy)
        self.swept_at = float(due.now)
        ids = due.taken[:MAX_CLOCK_STARTS], due.untaken, due.overdue[:MAX_CLOCK_STARTS], due.ready
        messages = iter(await self._read_messages([id for each in ids for id in each]))
        taken, untaken, overdue, ready = ([next(messages) for _ in each] for each in ids)
        again, late = (
            await self._start_clocks(taken, untaken[:MAX_UNTAKEN], overdue, policy)
            if due.unseen or overdue
            else (0, [])
        )
        actions = [self._action_for(one, policy) for one in await self._unreported(late, policy)]
        actions += [Action(one, "expired" if one.attempt is None else "deliver") for one in ready]
        timed_out = [Action(one, "queueTimeout") for one in untaken if _has_waited(one, self.swept_at, policy)]
        acted = await self._carry_out([*actions, *timed_out], policy) if actions or timed_out else 0
        if again is REFUSED or acted is REFUSED:
            return FULL_POLL_SECONDS
        if again or taken or overdue or actions or acted:
            return 0
        return min(float(due.wait or inf), untaken_check_interval(policy.timeout) if due.unseen else inf)

    async def _unreported(self, late: list[DueMessage], policy: Policy) -> list[DueMessage]:
        """Return those of ``late`` of which no report waits to be carried out; the others are looked at again later.

        Their records, which may be about to expire, are kept for that.
        """
        silent = [one for one in late if one.error is None and one.attempt is not None]
        reported = await self._reports.waiting(policy) if silent else Reported()
        held = [one for one in silent if reported.names(one.id, one.xid)]
        if held:
            again = f"{self.swept_at + min(max(policy.timeout / 2, MIN_HOLD), MAX_HOLD):.6f}"
            keys = [key for one in held for key in (self._record + one.id, self._xid + (one.xid or b""))]
            expiries = [("EXPIRE", key, policy.expire) for key in keys]
            later = [("ZADD", encoded(self._keys.deadlines), "XX", "GT", again, one.id) for one in held]
            await self._context.wire.send(pack([*expiries, *later]))
            await self._context.wire.receive(len(expiries) + len(later))
        waiting = {one.id for one in held}
        return [one for one in late if one.id not in waiting]

    async def _find_due(self, policy: Policy) -> DueIds:
        keys, batch = self._keys, self._context.settings.batch
        return DueIds(
            *await self._context.ask(
                _due,
                deadlines=keys.deadlines,
                delayed=keys.delayed,
                queue=policy.out,
                pushed=keys.pushed,
                looks=keys.looks,
                batch=batch,
                oldest=batch if policy.queue_timeout else MAX_UNTAKEN,
            )
        )

    async def _read_messages(self, ids: list[bytes]) -> list[DueMessage]:
        if not ids:
            return []
        await self._context.wire.send(pack([("HMGET", self._record + id, *FIELDS) for id in ids]))
        records: list[Any] = await self._context.wire.receive(len(ids))
        return [
            DueMessage(id) if isinstance(record, ResponseError) else DueMessage(id, *record)
            for id, record in zip(ids, records, strict=True)
        ]

    async def observe_queue(self, policy: Policy) -> None:
        """Record how many messages workers have taken from their list."""
        await self._start_clocks([], [], [], policy)

    async def _start_clocks(
        self, taken: list[DueMessage], untaken: list[DueMessage], overdue: list[DueMessage], policy: Policy
    ) -> tuple[Any, list[DueMessage]]:
        """Return whether to sweep again at once, and those of ``overdue`` whose clock has run out."""
        keys, messages = self._keys, [*taken, *untaken, *overdue]
        outcome = await self._context.run_unless_full(
            _clock,
            deadlines=keys.deadlines,
            queue=policy.out,
            pushed=keys.pushed,
            looks=keys.looks,
            overdue=keys.metric("overdue"),
            subjects=[key for one in messages for key in (self._record + one.id, self._xid + (one.xid or b""))],
            timespan=policy.timeout,
            expire=policy.expire,
            every=untaken_check_interval(policy.timeout),
            ids=[one.id for one in messages],
        )
        if outcome is REFUSED:
            return REFUSED, []
        return outcome[0], [messages[place - 1] for place in outcome[1:]]

    def _action_for(self, one: DueMessage, policy: Policy) -> Action:
        """Return the action for a message that is past its deadline."""
        if one.attempt is None:
            return Action(one, "expired")
        attempt, most = parse_whole(one.attempt), parse_whole(one.attempts)
        if one.final or attempt is None or attempt >= min(policy.attempts, policy.attempts if most is None else most):
            return Action(one, "timeout" if one.error is None else "failed")
        return Action(one, "retry", policy.backoff.delay_after(attempt))

    async def _carry_out(self, actions: Sequence[Action], policy: Policy) -> Any:
        """Return how many messages were acted on; one script acts on some of them, until their bytes are enough."""
        keys = self._keys
        await self._replies.refresh()
        subjects: list[bytes | str] = []
        messages: list[bytes | str] = []
        for one, verb, delay in actions:
            key = self._record + one.id
            answer = self._reply_list(one.reply_to, policy) or key
            subjects += (key, self._xid + (one.xid or b""), one.queue or policy.out, answer)
            messages += (one.id, one.fingerprint, verb, f"{delay:.3f}")
        named: dict[str, Any] = {
            **{name: keys.metric(name) for name in ("registered", "delivered", "timeout", "retry", "dead", "expired")},
            "deadlines": keys.deadlines,
            "delayed": keys.delayed,
            "budget": keys.retry_budget,
            "share": "" if policy.retry_budget is None else policy.retry_budget / 100,
            "out": policy.out,
            "pushed": keys.pushed,
            "ids": keys.message_ids,
            **keys.event_keys,
            **keys.answer_keys,
            "letters": keys.dead,
            "timespan": policy.timeout,
            "expire": policy.expire,
            "life": policy.reply_expire,
            "lasting": self._replies.lasting_words,
            "history": policy.history,
            "origin": policy.source,
            "bytes": self._context.settings.batch_bytes,
            "due": keys.due,
        }
        done, acted, most = 0, 0, len(actions)
        while done < len(actions):
            words = slice(4 * done, 4 * (done + most))
            try:
                reply = await self._context.run_unless_full(
                    _sweep, subjects=subjects[words], messages=messages[words], **named
                )
            except ResponseError as error:
                if not is_of_script(error):
                    raise
                if most == 1:
                    await self._fail(actions[done].message, policy, describe(error))
                    done += 1
                most = 1
                continue
            if reply is REFUSED:
                return REFUSED
            done, acted = done + reply[0], acted + reply[1]
        return acted

    async def _fail(self, one: DueMessage, policy: Policy, reason: str) -> None:
        """Let a message with which the script failed be due again later; bury it after the policy's ``attempts``."""
        keys, redis, at = self._keys, self._context.redis, self.swept_at
        self._failures[one.id] += 1
        failures = self._failures[one.id]
        self._context.log.error("a script failed", reason=reason, id=decoded(one.id), failures=failures)
        if failures < policy.attempts:
            for schedule in (keys.deadlines, keys.delayed):
                await redis.zadd(schedule, {one.id: at + policy.timeout}, xx=True)
            return
        del self._failures[one.id]
        key = self._record + one.id
        message: Any = None if one.attempt is None else await redis.hget(decoded(key), "message")
        letter = {
            "message": decoded(message or b""),
            "reason": "poison",
            "error": f"a script failed: {reason}",
            "source": policy.source,
            "attempts": parse_whole(one.attempt) or 0,
            "at": int(at * 1000),
            "id": decoded(one.id),
            "xid": decoded(one.xid or b""),
        }
        async with AtomicWrites(redis) as writes:
            writes.zrem(keys.deadlines, one.id)
            writes.zrem(keys.delayed, one.id)
            writes.delete(key)
            if message is not None:
                writes.lpush(keys.dead, encoded(json.dumps(letter, ensure_ascii=False)))
            for name in ("count", "poison") if message is not None else ():
                writes.hincrby(keys.metric("dead"), name, 1)
            await writes.execute()

    def _reply_list(self, reply_to: bytes | None, policy: Policy) -> bytes | str | None:
        """Return the list for the error of a dead message; None if there is none, or its name is not allowed."""
        if not reply_to:
            return policy.reply_to
        return None if self._replies.refusal(decoded(reply_to)) else reply_to


def _has_waited(one: DueMessage, now: float, policy: Policy) -> bool:
    """Return True if an untaken message has waited for the policy's queueTimeout, or until its own deadline."""
    until, since = parse_number(one.until), parse_number(one.delivered or one.timestamp)
    if until is not None and until <= now:
        return True
    return bool(policy.queue_timeout) and since is not None and now - since >= policy.queue_timeout
