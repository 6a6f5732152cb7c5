"""A link of a bus that fails at each command in every way loses nothing that was confirmed."""

import asyncio
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from penstock.base.errors import Unconfirmed
from penstock.bus import Bus, Message, Queue, keep_alive, taking
from penstock.core import instance
from penstock.core.script import Script
from penstock.testing.chaos.frames import words_of
from penstock.testing.chaos.proxy import FaultProxy, ProxyFault
from tests.reliability.command_proxy import CommandFault, Kind
from tests.support.harness import eventually

LEASED: Final = (keep_alive, taking)
"""The modules that use the time of a lease, for which tests cannot wait."""
BREAKS: Final = [kind for kind in Kind if not kind.swallows]
SWALLOWS: Final = [kind for kind in Kind if kind.swallows]
NAMES: Final = {"attach", "push", "pop", "ack", "restore", "touch", "put_back", "describe", "close", "save", "renew"}
"""Of the scripts that are called, but for ``release``."""
LOSSES: Final = {"messages may be lost", "not given back"}
MESSAGES: Final = 4
LONGEST_SECONDS: Final = 150


class BusProxy(FaultProxy):
    """A proxy that injects a fault at one command, or script, by its name."""

    def __init__(self, port: int, names: dict[bytes, str], fault: CommandFault | None) -> None:
        super().__init__(port)
        self._names, self._wanted, self.counts = names, fault, Counter[str]()
        self.met = False

    def command(self, frame: bytes, _: list[str]) -> ProxyFault | None:
        word, *more = words_of(frame)
        name = self._names.get(more[0], "EVAL") if word == b"EVALSHA" else word.decode()
        nth, fault = self.counts[name], self._wanted
        self.counts[name] += 1
        if fault is None or (name, nth) != (fault.word, fault.nth):
            return None
        self.met = True
        timing, passes, swallows = fault.kind.value
        return ProxyFault(None, timing, swallows, passes)


@dataclass
class Stored:
    number: int


@dataclass
class Handled:
    """What a queue has given and taken."""

    accepted: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    given: list[Message] = field(default_factory=list)
    acked: int = 0

    async def push(self, queue: Queue, part: str) -> None:
        for number in range(MESSAGES):
            body = f"{part}{number}"
            try:
                await queue.push(body)
                self.accepted.append(body)
            except Unconfirmed:
                self.unsure.append(body)

    def got(self, message: Message) -> None:
        assert message.id > self.acked, "it was acknowledged"
        self.given.append(message)

    async def ack(self, message: Message) -> None:
        await message.ack()
        self.acked = message.id

    def assert_all_came(self, lost: int, *, reliable: bool) -> None:
        """All accepted ones came, but ``lost`` ones of which the log tells; nothing came that was not pushed."""
        bodies = [str(each) for each in self.given]
        assert len(set(self.accepted) - {*bodies}) <= lost
        assert set(bodies) <= {*self.accepted, *self.unsure}
        assert len({(each.id, str(each)) for each in self.given}) == len(set(bodies)), "pushed once each"
        if not reliable:
            assert len(bodies) == len(set(bodies)), "handled once each"
        firsts = [*dict.fromkeys(each.id for each in self.given)]
        assert firsts == sorted(firsts)


async def drain(queue: Queue, redis: "Redis", handled: Handled, *, reliable: bool, **options: Any) -> None:
    """Handle until nothing waits, and acknowledge each message."""
    _, messages, _, toack = queue.keys

    async def handle(message: Message) -> None:
        handled.got(message)
        if reliable:
            await handled.ack(message)

    async def empty() -> bool:
        return not await redis.exists(messages, toack)

    queue.on("message", handle)
    while not await empty():
        await queue.consume(reliable=reliable, **options)
        await eventually(empty)
        await queue.stop()
    queue.off("message", handle)


class Run(NamedTuple):
    counts: Counter[str]
    met: bool


class Sweep:
    """Runs of all that a bus does with a queue and an object, each with names of its own."""

    def __init__(self, redis: "Redis", port: int, names: dict[bytes, str]) -> None:
        self._redis, self._port, self._names = redis, port, names
        self.logs: list[MutableMapping[str, Any]] = []

    async def inject_each(self, kinds: list[Kind], at_once: int) -> None:
        """Inject a fault of each kind at each command of an undisturbed run."""
        await self.run(None)  # loads the scripts
        counts = (await self.run(None)).counts
        faults = [CommandFault(kind, name, nth) for kind in kinds for name in counts for nth in range(counts[name])]
        limit = asyncio.Semaphore(at_once)

        async def run(fault: CommandFault) -> bool:
            async with limit, asyncio.timeout(LONGEST_SECONDS):
                return (await self.run(fault)).met

        with capture_logs() as self.logs:
            met = await asyncio.gather(*map(run, faults))
        print(f"{len(faults)} runs, {met.count(False)} ended before the fault")
        for kind in kinds:
            names = {fault.word for fault, was_met in zip(faults, met, strict=True) if was_met and fault.kind is kind}
            assert names >= {f"{name}.lua" for name in NAMES} | {"release.lua", "SUBSCRIBE"}, kind

    async def run(self, fault: CommandFault | None) -> Run:
        name = f"{fault.kind.name}-{fault.word}-{fault.nth}" if fault else "undisturbed"
        async with BusProxy(self._port, self._names, fault) as link, Bus(f"redis://{link.address}/0") as bus:
            try:
                await self._use(bus, name, link)
            except BaseException as error:
                error.add_note(name)
                raise
        return Run(link.counts, link.met)

    async def _use(self, bus: Bus, name: str, link: BusProxy) -> None:
        queue, touched = bus.queue(name), bus.queue(f"{name}:touched")
        await asyncio.gather(queue.attach(), touched.attach(ttl=2))
        await self._reliably(queue, link)
        await self._for_good(queue)
        await queue.set_metadata({"field": "value"})
        assert await queue.get_metadata("field") == "value"
        assert await bus.persistable(name, Stored(1)).save()
        await eventually(lambda: link.counts["touch.lua"] > 0)
        try:
            await queue.close()
        except Unconfirmed:  # closing twice could destroy a queue that another program has created between
            assert name != "undisturbed"  # any command without a reply may cut the connection meanwhile
            if await self._redis.exists(*queue.keys):
                await queue.attach()
                await queue.close()
        assert not await self._redis.exists(*queue.keys, queue.lease)

    async def _reliably(self, queue: Queue, link: BusProxy) -> None:
        handled = Handled()
        await handled.push(queue, "a")
        async for message in queue.consume(reliable=True, exclusive=True):  # one of them, so that the rest goes back
            handled.got(message)
            await handled.ack(message)
            await eventually(lambda: link.counts["renew.lua"] > 0)
            break
        await queue.stop()
        await drain(queue, self._redis, handled, reliable=True, exclusive=True)
        handled.assert_all_came(0, reliable=True)

    async def _for_good(self, queue: Queue) -> None:
        handled = Handled()
        await handled.push(queue, "b")
        async for message in queue.consume():
            handled.got(message)
            if len(handled.given) == 2:
                break
        await queue.stop()
        await drain(queue, self._redis, handled, reliable=False)
        told = [each for each in self.logs if each.get("queue") == queue.name and each["event"] in LOSSES]
        handled.assert_all_came(MESSAGES if told else 0, reliable=False)


@pytest.fixture
async def sweep(redis: "Redis", monkeypatch: pytest.MonkeyPatch) -> Sweep:
    names = dict[bytes, str]()
    by_digest = Script.by_digest

    def named(self: Script, **given: Any) -> Any:
        command = by_digest(self, **given)
        names[str(command[1]).encode()] = self.name
        return command

    monkeypatch.setattr(Script, "by_digest", named)
    for module in LEASED:
        monkeypatch.setattr(module, "LEASE_SECONDS", 1)
    monkeypatch.setattr(instance, "PING_SECONDS", 0.2)
    monkeypatch.setattr(instance, "MAX_SILENCE", 2)
    return Sweep(redis, redis.connection_pool.connection_kwargs["port"], names)


async def test_a_link_cut_at_each_command_of_a_bus_loses_nothing_that_was_confirmed(sweep: Sweep) -> None:
    await sweep.inject_each(BREAKS, at_once=12)


async def test_a_link_that_swallows_each_command_of_a_bus_loses_nothing_that_was_confirmed(sweep: Sweep) -> None:
    await sweep.inject_each(SWALLOWS, at_once=60)
