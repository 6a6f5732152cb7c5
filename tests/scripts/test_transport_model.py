"""Transport with real scripts, compared with a model while packets and data are lost, repeated, late or rolled back."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from redis.asyncio import Redis

from common.context import Context
from penstock.base.errors import Fenced, Refused, TargetLost
from penstock.base.keys import Keys
from penstock.core import once
from penstock.core.connection import cancellable
from penstock.core.lease import Lease
from penstock.core.once import Dead, ListHop, Outgoing, digest_of
from penstock.core.raw_connection import Packed, RawConnection
from penstock.testing.chaos.frames import Frames
from penstock.testing.server import EmbeddedServer
from services.vpush import local_source
from services.vpush.local_source import LocalSource
from services.vpush.settings import Settings
from services.vpush.window import SendWindow
from tests.support.in_process import context_of
from tests.support.machines import run_machine

KEYS: Final = Keys("demo")
SENDERS: Final = 2
BAD: Final = b"bad "
"""Prefix of messages that are never sent to the target."""
SETTINGS: Final = Settings(
    redis="redis://h", redis_namespace="demo", in_="in", pending="pending", out_redis="redis://h", out="out", batch=3
)


STEPS: Final = ("send", "deliver", "hear", "settle")
one_in_three = st.sampled_from([False, False, True])


class Died(Exception):
    """The sender was killed."""


class Killable:
    """Raises ``Died`` before or after one of the next calls to a server, if ``left`` is set."""

    def __init__(self) -> None:
        self.left: int | None = None
        """Number of moments (before and after each call) until it dies; None: never."""

    async def do(self, work: Awaitable[Any]) -> Any:
        task = asyncio.ensure_future(work)
        try:
            self._pass()
        except Died:
            task.cancel()
            raise
        result = await task
        self._pass()
        return result

    def _pass(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Died


class KillableSource(LocalSource):
    def __init__(self, context: Context[Settings], killable: Killable) -> None:
        super().__init__(context, SendWindow())
        self._killable = killable

    async def begin(self, past: int) -> tuple[str, int, int]:
        found: tuple[str, int, int] = await self._killable.do(super().begin(past))
        return found

    async def lost(self, last: int, settled: int) -> None:
        await self._killable.do(super().lost(last, settled))

    async def take(self, first: int) -> list[bytes]:
        messages: list[bytes] = await self._killable.do(super().take(first))
        return messages

    async def settle(self, last: int, dead: list[Dead]) -> None:
        await self._killable.do(super().settle(last, dead))


@dataclass
class Packet:
    """A batch sent to the target."""

    sender: int
    incarnation: int
    data: bytes
    delivered: bool = False


@dataclass
class Sender:
    """One run of a service, from start to end, with the same steps as ``Transfer``."""

    number: int
    incarnation: int
    context: Context[Settings]
    here: LocalSource
    hop: ListHop
    settled: int
    next: int
    arrived: int
    unconfirmed: deque[tuple[int, list[Dead]]] = field(default_factory=deque)
    """Last number and dead messages of each unconfirmed batch."""
    dead: list[Dead] = field(default_factory=list)


class Link(RawConnection):
    """A sender's connection: direct during the agreement with the target; later the test delivers what was sent."""

    def __init__(self, there: "Redis", killable: Killable, send: Callable[[bytes], None]) -> None:
        super().__init__(there)
        self._killable, self._send_later = killable, send
        self.direct = True
        self.answers: deque[Any] = deque()

    async def send(self, packed: bytes) -> None:
        if self.direct:
            await self._killable.do(super().send(packed))
        else:
            self._send_later(packed)

    async def receive(self, replies: int, *, owed: bool = True) -> list[Any]:
        if self.direct:
            found: list[Any] = await self._killable.do(super().receive(replies))
            return found
        return [self.answers.popleft() for _ in range(replies)]


def prepared(first: int, messages: list[bytes], size: int) -> Outgoing:
    bad = [Dead(number, "bad", "it is") for number, each in enumerate(messages, first) if each.startswith(BAD)]
    return Outgoing([each for each in messages if not each.startswith(BAD)], bad)


@dataclass
class Snapshot:
    """The data of a server at one moment."""

    keys: dict[bytes, bytes]
    pushed: list[bytes]


class Transport(RuleBasedStateMachine):
    """Two databases stand for the two servers; restoring a snapshot stands for data loss."""

    url: str
    sources: type[KillableSource] = KillableSource

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.pushed: list[bytes] = []
        """Messages that the source has accepted and not lost."""
        self.made = self.incarnations = 0
        self.senders: dict[int, Sender] = {}
        """Senders that run, by number, including those that are fenced and do not know it yet."""
        self.links: dict[int, Link] = {}
        self.packets: list[Packet] = []
        """Packets that may still arrive: all that were sent since the target's last restart."""
        self.snapshots: dict[str, list[Snapshot]] = {"here": [], "there": []}
        self.excused: set[bytes] = set()
        """Messages that the target has lost."""
        self.target_lost = False
        self.may_double = False
        """True once the source has lost data."""
        self.stopped_by_loss = False
        """True if a service has stopped because the target lost data, so an operator must decide."""
        self.do(self.begin())

    def do(self, work: Awaitable[Any]) -> Any:
        async def done() -> Any:
            return await work

        return self.loop.run(done())

    async def begin(self) -> None:
        self.here: Any = Redis.from_url(self.url)
        self.there: Any = cancellable(Redis.from_url(self.url.removesuffix("/0") + "/1"))
        await self.here.flushall()

    def teardown(self) -> None:
        self.drain()
        self.do(self.close())
        self.loop.close()

    async def close(self) -> None:
        for sender in list(self.senders):
            await self.end(sender)
        await self.here.aclose()
        await self.there.aclose()

    # Publishers

    @rule(count=st.integers(1, 7), bad=st.booleans())
    def push(self, count: int, bad: bool) -> None:
        self.do(self.remember("here"))
        messages = [b"message %d" % number for number in range(self.made, self.made + count)]
        if bad:
            messages[0] = BAD + messages[0]
        self.made += count
        self.pushed += messages
        self.do(self.here.lpush("in", *messages))

    # Senders

    @rule(number=st.integers(1, SENDERS), dies_after=st.sampled_from([None] * 12 + [*range(24)]), keeps=st.booleans())
    def start(self, number: int, dies_after: int | None, keeps: bool) -> None:
        """Start a sender: take the lease, with its last token if ``keeps``, and agree with the target."""
        self.do(self.run(number, dies_after, keeps))

    async def run(self, number: int, dies_after: int | None, keeps: bool) -> None:
        await self.end(number)
        if not (keeps and await self.here.hget(KEYS.lease, "owner") == b"%d" % number):
            await self.here.hset(KEYS.lease, "expires", 0)
        self.incarnations += 1
        killable = Killable()
        killable.left = dies_after
        context = context_of(self.here, SETTINGS, str(number))
        context.token = await Lease(self.here, KEYS.lease, str(number), 3600).hold()
        link = Link(self.there, killable, partial(self.sent, number, self.incarnations))
        here = self.sources(context, killable)
        try:
            hop, settled = await once.agree(here, link, SETTINGS.out, prepared)
        except (Died, Fenced, Refused):
            pass
        except TargetLost:
            assert self.target_lost, "nothing there was ever lost"
            self.stopped_by_loss = True
        else:
            killable.left, link.direct = None, False
            self.links[number] = link
            self.senders[number] = Sender(number, self.incarnations, context, here, hop, settled, settled + 1, settled)
            return
        await context.reset()
        await link.close()

    def sent(self, number: int, incarnation: int, data: bytes) -> None:
        self.packets.append(Packet(number, incarnation, data))

    async def end(self, number: int) -> None:
        if sender := self.senders.pop(number, None):
            await sender.context.reset()
            await self.links.pop(number).close()

    def act(self, number: int, work: Callable[[Sender], Awaitable[None]]) -> None:
        """Do ``work``; end the run if a server fences or refuses it."""

        async def done() -> None:
            try:
                await work(self.senders[number])
            except (Fenced, Refused):
                await self.end(number)

        self.do(done())

    @precondition(lambda self: self.senders)
    @rule(which=st.integers(0, 1), times=st.integers(1, 3))
    def send(self, which: int, times: int) -> None:
        for _ in range(times):
            if (number := self.one_of_them(which)) is not None:
                self.act(number, self.take_and_send)

    async def take_and_send(self, sender: Sender) -> None:
        if messages := await sender.here.take(sender.next):
            packed = Packed(messages)
            outgoing = prepared(sender.next, messages, len(packed.data))
            last = sender.next + len(messages) - 1
            sender.unconfirmed.append((last, outgoing.dead))
            await sender.hop.send(sender.next, Packed(outgoing.messages), last, digest_of(packed))
            sender.next = last + 1

    @precondition(lambda self: self.senders)
    @rule(which=st.integers(0, 1), answers=st.integers(0, 3))
    def settle(self, which: int, answers: int) -> None:
        """Read up to ``answers`` replies, then settle what they confirm."""
        number = self.one_of_them(which)
        for _ in range(answers):
            if number in self.links and self.links[number].answers:
                self.act(number, self.receive_confirmation)
        if number in self.senders:
            self.act(number, self.settle_what_arrived)

    async def receive_confirmation(self, sender: Sender) -> None:
        last, dead = sender.unconfirmed.popleft()
        if await sender.hop.arrived() != last:
            raise Refused
        sender.arrived = last
        sender.dead += dead

    async def settle_what_arrived(self, sender: Sender) -> None:
        if sender.arrived > sender.settled:
            dead, sender.dead = sender.dead, []
            await sender.here.settle(sender.arrived, dead)
            sender.settled = sender.arrived

    @rule(
        count=st.integers(0, 5), steps=st.integers(1, 4), until=st.sampled_from(["send", "deliver", "hear", "settle"])
    )
    def work(self, count: int, steps: int, until: str) -> None:
        """Push, send, deliver, confirm and settle without any trouble, up to the step ``until``."""
        if not self.senders:
            self.start(1, None, keeps=True)
        if count:
            self.push(count, bad=False)
        number = max(self.senders, key=lambda each: self.senders[each].incarnation, default=0)
        self.cross(number, steps, STEPS.index(until))

    def cross(self, number: int, batches: int, last_step: int = 3) -> None:
        for _ in range(batches):
            if number in self.senders:
                self.act(number, self.take_and_send)
        while last_step > 0 and (coming := [each for each in self.coming() if each.sender == number]):
            self.do(self.hand_over(coming[0], answer=True))
        while last_step > 1 and number in self.senders and self.links[number].answers:
            self.act(number, self.receive_confirmation)
        if last_step > 2 and number in self.senders:
            self.act(number, self.settle_what_arrived)

    def one_of_them(self, which: int) -> int | None:
        return sorted(self.senders)[which % len(self.senders)] if self.senders else None

    # The link

    @precondition(lambda self: self.coming())
    @rule(which=st.integers(0, 30), times=st.integers(1, 3))
    def deliver(self, which: int, times: int) -> None:
        """Deliver the oldest packets of a sender, which may be dead or replaced by now."""
        for _ in range(times):
            if coming := self.coming():
                self.do(self.hand_over(coming[which % len(coming)], answer=True))

    def coming(self) -> list[Packet]:
        """Return the next packet of each connection."""
        oldest: dict[int, Packet] = {}
        for packet in self.packets:
            if not packet.delivered:
                oldest.setdefault(packet.incarnation, packet)
        return list(oldest.values())

    @precondition(lambda self: self.packets)
    @rule(back=st.integers(0, 12))
    def deliver_out_of_turn(self, back: int) -> None:
        """Deliver a packet again or before earlier ones; its reply is lost."""
        self.do(self.hand_over(self.packets[-1 - back % len(self.packets)], answer=False))

    async def hand_over(self, packet: Packet, answer: bool) -> None:
        await self.remember("there")
        wire = RawConnection(self.there)
        await wire.send(packet.data)
        replies = await wire.receive(len(Frames().whole(packet.data)))
        await wire.close()
        if answer:
            packet.delivered = True
            sender = self.senders.get(packet.sender)
            if sender and sender.incarnation == packet.incarnation:
                self.links[packet.sender].answers += replies

    # Servers that lose data

    async def remember(self, server: str) -> None:
        """Take a snapshot, to which a restart or a failover may roll the server back."""
        redis = getattr(self, server)
        keys = {key: await redis.dump(key) for key in await redis.keys()}
        self.snapshots[server].append(Snapshot(keys, list(self.pushed)))

    @precondition(lambda self: self.snapshots["here"])
    @rule(back=st.integers(1, 3), count=st.integers(0, 5), happens=one_in_three)
    def roll_the_source_back(self, back: int, count: int, happens: bool) -> None:
        """Restore a snapshot and cut all connections; what was sent may still arrive. Then push new messages."""
        if happens:
            snapshot = self.do(self.restore("here", back))
            self.may_double = True
            self.pushed = list(snapshot.pushed)
            if count:
                self.push(count, bad=False)

    @rule(count=st.integers(1, 5), steps=st.integers(1, 2), until=st.sampled_from(STEPS), happens=one_in_three)
    def fail_over(self, count: int, steps: int, until: str, happens: bool) -> None:
        """Fail over to a replica without the last pushed messages, some of which are in flight or have arrived."""
        if happens:
            self.work(count, steps, until)
            self.roll_the_source_back(1, count, happens)
            self.work(0, steps, "settle")

    @precondition(lambda self: self.snapshots["there"])
    @rule(back=st.integers(1, 3), happens=one_in_three)
    def roll_the_target_back(self, back: int, happens: bool) -> None:
        """Restore a snapshot and cut all connections; what was in flight is lost."""
        if happens:
            before = self.out()
            self.do(self.restore("there", back))
            self.target_lost = True
            self.excused |= set(before) - set(self.out())
            self.packets.clear()

    async def restore(self, server: str, back: int) -> Snapshot:
        snapshots, redis = self.snapshots[server], getattr(self, server)
        snapshot = snapshots[-back:][0]
        del snapshots[-back:]
        for number in list(self.senders):
            await self.end(number)
        await redis.flushdb()
        for key, dump in snapshot.keys.items():
            await redis.restore(key, 0, dump)
        self.stopped_by_loss = False
        return snapshot

    @precondition(lambda self: self.stopped_by_loss)
    @rule()
    def go_on_without_what_was_lost(self) -> None:
        """Decide as an operator may: continue without the lost messages."""
        self.do(self.here.hdel(KEYS.sequence, "source", "sequence"))
        self.stopped_by_loss = False

    # Invariants

    def out(self) -> list[bytes]:
        """Return the messages in ``out``, oldest first."""
        found: list[bytes] = self.do(self.there.lrange("out", 0, -1))
        return found[::-1]

    @invariant()
    def nothing_is_lost_doubled_or_overtaken(self) -> None:
        out = self.out()
        goes = [message for message in self.pushed if not message.startswith(BAD)]
        if not self.may_double:
            assert len(out) == len(set(out)), "doubled"
            if not self.target_lost:
                assert out == goes[: len(out)]
        waiting = self.do(self.here.lrange("in", 0, -1)) + self.do(self.here.lrange("pending", 0, -1))
        missing = set(goes) - set(out) - set(waiting) - self.excused
        assert not missing, "lost"
        bad = set(self.pushed) - set(goes) - set(waiting) - set(self.letters())
        assert not bad, "no letter"
        first = {message: place for place, message in reversed(list(enumerate(out)))}
        places = [first[message] for message in goes if message in first and message not in self.excused]
        assert places == sorted(places), "overtaken"

    def letters(self) -> list[bytes]:
        return [json.loads(letter)["message"].encode() for letter in self.do(self.here.lrange(KEYS.dead, 0, -1))]

    def drain(self) -> None:
        """Send all that is left and check the invariants."""
        self.start(1, None, keeps=True)
        while self.stopped_by_loss:
            self.go_on_without_what_was_lost()
            self.start(1, None, keeps=True)
        for _ in range(200):
            if not self.do(self.here.exists("in", "pending")):
                break
            if 1 not in self.senders:
                self.start(1, None, keeps=True)
            self.cross(1, 3)
        assert not self.do(self.here.exists("in", "pending")), "it does not come to an end"
        self.nothing_is_lost_doubled_or_overtaken()


@pytest.mark.parametrize("examples", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_whatever_happens_messages_arrive_once_and_in_order(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, examples: int
) -> None:
    """Lower two limits, so batches of two messages already go past the scripts, without any earlier small messages."""
    read = 0

    class OnServer(Transport):
        url = server.url

    class ArrivalCounter(KillableSource):
        async def _read(self, first: int, many: int) -> list[bytes]:
            nonlocal read
            messages = await super()._read(first, many)
            read += bool(messages)
            return messages

    for module in (once, local_source):
        monkeypatch.setattr(module, "SCRIPT_MESSAGES", 1)
    monkeypatch.setattr("penstock.core.read_size.MIN_SMALL_MESSAGES", 0)
    OnServer.sources = ArrivalCounter

    run_machine(OnServer, examples, 50)
    assert read > examples
