"""Message tracking with real scripts and a real server, compared with a model after random steps."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from hashlib import sha1
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from redis.asyncio import Redis

from common.settings.fields import YEAR
from penstock.base.encoding import decoded
from penstock.testing.server import EmbeddedServer
from penstock.tracking.details import written_details
from tests.scripts.tracking_model import (
    ATTEMPTS,
    BACKOFF,
    CAPACITY,
    EXPIRE,
    TIMEOUT,
    Model,
    PlannedAction,
    Report,
    Request,
    ResolvedReport,
)
from tests.support.hop import Hop
from tests.support.machines import run_machine

MONITORS: Final = 3
CLOCK_TOLERANCE: Final = 0.01
"""Largest difference (s) between the server's clocks."""


def written(xid: str) -> str | int:
    """Return ``xid`` as JSON has it: no text equals a number."""
    return int(xid) if xid.isdigit() else xid


def asked(**meta: Any) -> Request:
    payload = json.dumps({"meta": meta}).encode()
    if meta.get("delay", 0) < 0:
        return Request(payload, bad=True)
    name = str(meta["id"]) if "id" in meta else sha1(payload).hexdigest()
    kind = "sha1" if "id" not in meta else "meta" if isinstance(meta["id"], str) else "metaNumber"
    return Request(payload, name, kind, meta.get("replyTo", ""), meta.get("delay", 0), meta.get("deadline", 0))


REQUESTS: Final = [
    *(Request(b"%d" % number, str(number), "number") for number in (1, 2, 3, 4, 5, 1000)),
    *(Request(payload, sha1(payload).hexdigest(), "sha1") for payload in (b"hello", b"\xff\0")),
    asked(id="a"),
    asked(id="a", replyTo="to:a"),
    asked(id="a", replyTo="to:a", delay=100),
    asked(id=1, delay=900),
    asked(id=4, replyTo="to:b"),
    asked(id=6),
    asked(id="b", replyTo="to:b"),
    asked(delay=300),
    asked(id="b", delay=-1),
    asked(id="late", deadline=-50),
    asked(id="a", deadline=950, replyTo="to:a"),
    asked(id="soon", deadline=1650),
    asked(id="never", delay=900, deadline=350),
]
"""``deadline`` is in seconds from the beginning of the test."""
FAILURES: Final[dict[str, dict[str, Any]]] = {
    "failed": {"error": "no luck"},
    "final": {"error": "no luck", "retry": False},
}

place = st.integers(0, 30)
report_forms = st.tuples(
    st.sampled_from(["id", "bare id", "xid", "xid", "bare xid", "bare xid", "bad"]),
    place,
    st.sampled_from(["done", "done", "failed", "failed", "final", "touch", "touch"]),
    st.sampled_from([0, 0, 0, 1, 2, 3]),
)
answer_forms = st.tuples(place, st.sampled_from([0, 0, 1, 2]))
any_monitor = st.integers(0, MONITORS - 1)


class Tracking(RuleBasedStateMachine):
    """Every rule does the same to a hop and to the model; the invariant compares all records."""

    url: str
    accept_late = False
    retry_budget: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.model = Model(self.accept_late, self.retry_budget)
        self.held: dict[int, tuple[str, Sequence[PlannedAction] | Sequence[ResolvedReport]]] = {}
        """Work of each paused monitor, which it continues later, whatever has happened since."""
        self.touches = self.events_compared = 0
        self.do(self.begin())

    def do(self, work: Awaitable[Any]) -> Any:
        async def done() -> Any:
            return await work

        return self.loop.run(done())

    async def begin(self) -> None:
        self.redis: Any = Redis.from_url(self.url)
        await self.redis.flushall()
        self.hop = await Hop(
            self.redis,
            MONITORS,
            message_timeout=TIMEOUT,
            message_expire=EXPIRE,
            attempts=ATTEMPTS,
            backoff=list(BACKOFF),
            message_capacity=CAPACITY,
            reply_expire=YEAR,
            accept_late=self.model.accept_late,
            retry_budget=self.model.retry_budget,
        ).start()
        self.began = await self.hop.now()

    def teardown(self) -> None:
        for monitor in list(self.held):
            self.resume(monitor)
        self.agree()
        self.do(self.redis.aclose())
        self.loop.close()

    # Requests

    @initialize(requests=st.lists(st.sampled_from(REQUESTS), min_size=2, max_size=5))
    def begin_with(self, requests: list[Request]) -> None:
        self.push(requests)

    @precondition(lambda self: self.model.messages)
    @rule(place=place, copies=st.integers(1, 3))
    def push_again(self, place: int, copies: int) -> None:
        self.push([list(self.model.messages.values())[-1 - place % len(self.model.messages)].request] * copies)

    @rule(requests=st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4))
    def push(self, requests: list[Request]) -> None:
        requests = [self.dated(request) for request in requests]
        self.do(self.hop.push(*(request.payload for request in requests)))
        ids = iter(self.registered())
        self.model.push(requests[:1], ids)
        self.model.push(requests[1:], ids)
        assert next(ids, None) is None

    @rule(near=st.lists(st.integers(-3, 3), min_size=1, max_size=4))
    def push_numbers_that_are_ids(self, near: list[int]) -> None:
        newest = max(self.model.messages, default=0)
        names = [str(max(newest + number, 1)) for number in near]
        self.push([Request(name.encode(), name, "number") for name in names])

    def dated(self, request: Request) -> Request:
        """Return a request of ``REQUESTS`` with its deadline as a time of the server."""
        if not request.lifetime or request not in REQUESTS:
            return request
        meta = json.loads(request.payload)["meta"] | {"deadline": self.began + request.lifetime}
        return replace(request, payload=json.dumps({"meta": meta}).encode())

    def registered(self) -> list[int]:
        """Return the ids registered since the last comparison of events."""
        events = self.do(self.hop.events())[self.events_compared :]
        return [int(id) for event, id, _ in events if event == "registered"]

    # Reports of workers

    def known(self, place: int) -> tuple[int, str]:
        """Return id and xid of a current or recent message, newest first; of none if ``place`` is 28 or more."""
        there_were = self.model.messages.values()
        messages = [*(each for each in there_were if each.recorded or each.where), *list(there_were)[-2:]]
        if place >= 28 or not messages:
            return 999_999, "nobody"
        message = messages[-1 - place % len(messages)]
        return message.id, message.request.xid

    def report(self, form: str, place: int, verdict: str, attempt: int) -> Report:
        if form == "bad":
            return Report(b"{" * (1 + place), "bad")
        id, xid = self.known(place)
        id, xid = (0, xid) if "xid" in form else (id, "")
        if form.startswith("bare"):
            said = str(id or xid)
            number = int(said) if said.isdigit() else 0
            return Report(said.encode(), "done", number, said)
        more = dict(FAILURES.get(verdict, {}))
        seconds = 0
        if verdict == "touch":
            self.touches += 1
            more["touch"] = seconds = 730 + self.touches % 60
        if attempt:
            more["attempt"] = attempt
        named = {"id": id} if id else {"xid": written(xid)}
        return Report(json.dumps(named | more).encode(), verdict, id, xid, attempt, seconds)

    @rule(forms=st.lists(report_forms, min_size=1, max_size=4), monitor=any_monitor, at_once=st.booleans())
    def push_done(self, forms: list[tuple[str, int, str, int]], monitor: int, at_once: bool) -> None:
        monitor = self.free(monitor)
        reports = [self.report(*form) for form in forms]
        entries = [report.entry for report in reports]
        first = len(reports) if at_once or self.hop.monitors[monitor].finisher.comes_in_batches else 1
        self.do((self.hop.push_done_batch if at_once else self.hop.push_done)(*entries, monitor=monitor))
        self.model.handle(self.model.resolve(reports[:first]), reports[first:])

    @precondition(lambda self: len(self.held) < MONITORS - 1)
    @rule(forms=st.lists(report_forms, min_size=1, max_size=4), monitor=any_monitor)
    def hear(self, forms: list[tuple[str, int, str, int]], monitor: int) -> None:
        """Pause a monitor that has resolved its reports."""
        monitor = self.free(monitor)
        reports = [self.report(*form) for form in forms]
        work = self.hop.push_done_batch(*(report.entry for report in reports), monitor=monitor)
        assert self.do(self.hop.monitors[monitor].halt("finish.lua", work))
        self.held[monitor] = "hear", self.model.resolve(reports)

    @rule(forms=st.lists(answer_forms, min_size=1, max_size=3))
    def answer(self, forms: list[tuple[int, int]]) -> None:
        reports: list[Report] = []
        for place, attempt in forms:
            _, xid = self.known(place) if place < 30 else (0, "")
            meta = {"id": written(xid)} | ({"attempt": attempt} if attempt else {})
            entry = json.dumps({"meta": meta}).encode() if xid else b"answer to nobody"
            if xid not in {report.xid for report in reports} or not self.has_lost_its_oldest(xid):
                reports.append(Report(entry, "answer" if xid else "bad", 0, xid, attempt))
        first = len(reports) if self.hop.answers.comes_in_batches else 1
        self.do(self.hop.answer(*(report.entry for report in reports)))
        self.model.handle(self.model.resolve(reports[:first]), reports[first:])

    def has_lost_its_oldest(self, xid: str) -> bool:
        """Return True if the oldest record is gone: mdispatch's memory then decides what an answer means."""
        chain = self.model.chains.get(xid)
        return chain is not None and not self.model.messages[chain.ids[0]].recorded

    @rule()
    def be_answered_by_another(self) -> None:
        self.hop.forget()

    # What is due

    @rule(monitor=any_monitor)
    def sweep(self, monitor: int) -> None:
        self.do(self.hop.sweep(self.free(monitor)))
        while plans := self.model.plan_due():
            self.model.act(plans)

    @precondition(lambda self: len(self.held) < MONITORS - 1)
    @rule(monitor=any_monitor)
    def look(self, monitor: int) -> None:
        """Pause a monitor that has read what is due."""
        monitor = self.free(monitor)
        work = self.hop.monitors[monitor].sweeper.sweep(self.hop.policy)
        halted = self.do(self.hop.monitors[monitor].halt("sweep.lua", work))
        plans = self.model.plan_due()
        assert halted == bool(plans)
        if halted:
            self.held[monitor] = "look", plans

    @precondition(lambda self: self.held)
    @rule(which=any_monitor)
    def go_on(self, which: int) -> None:
        self.resume(sorted(self.held)[which % len(self.held)])

    def resume(self, monitor: int) -> None:
        kind, plans = self.held.pop(monitor)
        self.do(self.hop.monitors[monitor].resume())
        act: Any = self.model.act if kind == "look" else self.model.handle
        act(plans)

    def free(self, monitor: int) -> int:
        """Return ``monitor`` or the next one that is not paused."""
        return next(each % MONITORS for each in range(monitor, monitor + MONITORS) if each % MONITORS not in self.held)

    # Time and operators

    @rule(seconds=st.sampled_from([100, 300, 700, 1300, 4000]))
    def advance(self, seconds: int) -> None:
        self.do(self.hop.advance(seconds))
        self.model.advance(seconds)

    @rule(monitor=any_monitor, times=st.integers(1, 3))
    def live(self, monitor: int, times: int) -> None:
        """Let time pass until the next message is due, and sweep; repeat."""
        for _ in range(times):
            waits = [message.due - self.model.now for where in ("flight", "delayed") for message in self.model[where]]
            self.advance(max(min(waits, default=0), 0))
            self.sweep(monitor)

    @precondition(lambda self: self.model.messages)
    @rule(place=st.integers(0, 27))
    def forget(self, place: int) -> None:
        """Delete a record, as an operator may."""
        id, _ = self.known(place)
        self.do(self.redis.delete(self.hop.keys.message(str(id))))
        self.model.forget(id)

    # Comparison

    @invariant()
    def agree(self) -> None:
        self.do(self.compare())

    async def compare(self) -> None:
        hop, model = self.hop, self.model
        self.drift = await hop.now() - self.began
        await self.compare_zset(hop.keys.deadlines, "flight")
        await self.compare_zset(hop.keys.delayed, "delayed")
        assert await hop.ids() == [str(id) for id in model.ids]
        await self.compare_records()
        await self.compare_events()
        assert Counter(await hop.held()) == model.out
        letters = [(each["reason"], each["message"], each["attempts"]) for each in await hop.letters()]
        assert Counter(letters) == model.letters
        for name in ("to:a", "to:b"):
            assert [reply_of(reply) for reply in await hop.held(name)] == model.replies.get(name, [])
        await self.compare_metrics()
        assert await hop.problems() == []

    async def compare_zset(self, key: str, where: str) -> None:
        found = await self.redis.zrange(key, 0, -1, withscores=True)
        expected = self.model[where]
        assert [decoded(id) for id, _ in found] == [str(message.id) for message in expected]
        for (_, score), message in zip(found, expected, strict=True):
            self.assert_moment(score, message.due)

    def assert_moment(self, found: object, expected: int) -> None:
        late = float(str(found)) - (self.began + expected - self.model.now)
        assert -CLOCK_TOLERANCE <= late <= self.drift + CLOCK_TOLERANCE, (found, expected, late)

    async def compare_records(self) -> None:
        prefix = self.hop.keys.message("")
        names = {decoded(key).removeprefix(prefix) async for key in self.redis.scan_iter(f"{prefix}*", count=1000)}
        messages = {str(id): message for id, message in self.model.messages.items() if message.recorded}
        chains = {f"xid:{xid}": chain for xid, chain in self.model.chains.items()}
        assert (
            names - {"id", "ids", "deadlines", "delayed", "pushed", "looks", "budget", "answers", "answers:more"}
            == messages.keys() | chains.keys()
        )
        for name, kept in (messages | chains).items():
            left = await self.redis.pttl(prefix + name) / 1000 - (kept.expires - self.model.now)
            assert -self.drift - 1 <= left <= CLOCK_TOLERANCE, (name, left)
        for id, message in messages.items():
            record = await self.hop.record(id)
            expected = {"xid": message.request.xid, "attempt": str(message.attempt)}
            moments = {"timestamp": message.registered}
            if message.dead:
                expected |= {"state": "dead", "reason": message.dead}
                moments["died"] = message.expires - EXPIRE
            else:
                payload = message.request.payload.decode(errors="surrogateescape")
                expected |= {"service": "1", "queue": "out", "message": payload}
                expected |= {"replyTo": message.request.reply_to} if message.request.reply_to else {}
                expected |= {"error": message.error} if message.error is not None else {}
                expected |= {"final": "1"} if message.final else {}
                expected |= {"type": message.request.kind} if message.request.delay else {}
                moments |= {"deadline": message.deadline} if message.attempt else {}
                expected |= {"number": str(message.number)} if message.attempt else {}
                if message.until:
                    moments["until"] = message.until
                    expected["details"] = written_details(json.loads(payload)["meta"])[1] or ""
                again = message.attempt > 1 or (message.attempt and message.request.delay)
                moments |= {"delivered": message.delivered} if again else {}
            assert record.keys() == expected.keys() | moments.keys()
            assert record.items() >= expected.items()
            for name, moment in moments.items():
                self.assert_moment(record[name], moment)
        for xid, chain in self.model.chains.items():
            record = await self.hop.chain(xid)
            ids = list(map(str, chain.ids))
            links = {"id": ids[0], "type": chain.kind} | ({"dead": "1"} if chain.dead else {})
            links |= {f"next:{one}": other for one, other in pairwise(ids)}
            links |= {f"before:{other}": one for one, other in pairwise(ids)}
            if not chain.dead:
                wanted = {id: self.model.messages[int(id)].request.reply_to for id in ids}
                links |= {f"replyTo:{id}": reply_to for id, reply_to in wanted.items() if reply_to}
            last = record.pop("last", ids[-1])
            assert (last, record) == (ids[-1], links)

    async def compare_events(self) -> None:
        events = await self.hop.events()
        assert Counter(events[self.events_compared :]) == Counter(self.model.events[self.events_compared :])
        self.events_compared = len(events)

    async def compare_metrics(self) -> None:
        prefix = self.hop.keys.metric("")
        found: Counter[tuple[str, str]] = Counter()
        async for key in self.redis.scan_iter(f"{prefix}*", count=1000):
            name = decoded(key).removeprefix(prefix)
            metric = await self.hop.metric(name)
            if spent := self.model.spent.get(name):
                late = metric.pop("sum") - sum(spent)
                assert -CLOCK_TOLERANCE <= late <= (self.drift + CLOCK_TOLERANCE) * len(spent)
                assert -CLOCK_TOLERANCE <= metric.pop("max") - max(spent) <= self.drift + CLOCK_TOLERANCE
            found += Counter({(name, field): int(count) for field, count in metric.items()})
        assert found == self.model.counts


def reply_of(reply: bytes) -> bytes:
    said = json.loads(reply)
    return f"{said['error']['reason']} {said['error']['attempts']}".encode() if "error" in said else reply


@pytest.mark.parametrize("examples", [10, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("late", "budget"),
    [(False, None), (True, None), (False, 1)],
    ids=["late reports are counted", "late reports are accepted", "retries are limited"],
)
def test_records_equal_those_of_the_model_whatever_happens(
    server: EmbeddedServer, budget: int | None, examples: int, *, late: bool
) -> None:
    class OnServer(Tracking):
        url = server.url
        accept_late = late
        retry_budget = budget

    run_machine(OnServer, examples, 40)
