"""What a consumer promises: one test for each promise.

The tests run over each driver; what its wire cannot keep is left out with the reason.
"""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis.asyncio import Redis

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.contracts.drivers import DRIVERS, Driver, Place
from tests.contracts.handling import Line, Order
from tests.reliability.proxy import Fault, Proxy
from tests.reliability.replica import Replica
from tests.support.harness import eventually

LONG: float = 60
"""A lease (s) that does not end while a test runs."""
IDLE_SECONDS = 1.0
MOST_WHEN_IDLE = 80
"""Commands in that time, also those in scripts, and those of a service between it and the server."""
PATIENCE = 20
"""Seconds in which what is promised has to happen."""


async def until(condition: Callable[[], object]) -> None:
    await eventually(condition, PATIENCE)


class Workers:
    """What a test does with one driver: it sends, starts and kills workers, and reads what they have written."""

    def __init__(self, driver: Driver, ends: ExitStack) -> None:
        self.driver, self._ends = driver, ends
        self.order = Order("", str(driver.place.folder))
        self._started = 0

    def start(self, kind: str | None = None, *, port: int | None = None, **options: Any) -> Replica:
        """Start a worker, which connects to ``port``, by default to where its messages are."""
        url = self.driver.url(self.driver.port if port is None else port)
        order = Order(**asdict(self.order) | {"url": url, "lease": LONG} | options)
        name = kind or next(name for name, each in DRIVERS.items() if each is type(self.driver))
        return self._ends.enter_context(_Worker(self.driver.place, name, order))

    def proxy(self) -> Proxy:
        """Return what workers reach the messages through, so that a test can break the connection."""
        return self._ends.enter_context(Proxy(self.driver.port))

    def begun(self, name: str) -> list[Line]:
        return [line for line in self.order.lines() if (line.event, line.name) == ("begun", name)]

    @property
    def handled(self) -> list[str]:
        """Return the names of what was handled, in order."""
        return [line.name for line in self.order.lines() if line.event == "handled"]

    async def until_begun(self, name: str, times: int = 1) -> None:
        await until(lambda: len(self.begun(name)) >= times)

    async def until_handled(self, *names: str) -> None:
        await until(lambda: {*names} <= {*self.handled})

    async def let_first(self, name: str) -> None:
        """Let the worker go on that began ``name`` first, until it has handled it, or heard that it has lost it."""
        pid = self.begun(name)[0].pid
        self.order.let(name, pid)
        await until(
            lambda: any(line[:3] in (("handled", name, pid), ("left", name, pid)) for line in self.order.lines())
        )

    async def until_settled(self, left: int = 0) -> None:
        async def is_settled() -> bool:
            return await self.driver.left() == left

        await until(is_settled)

    async def all_is_through(self, *names: str) -> None:
        """Wait until these are handled, and nothing is left."""
        await self.until_handled(*names)
        await self.until_settled()

    async def break_settlement(self, fault: Fault) -> None:
        """Cut the connection once the request that settles has come, or its answer."""
        met = fault.answered if fault.forward else fault.met
        await until(met.is_set)
        fault.cut()


class _Worker(Replica):
    """A worker of a driver, from the fork server."""

    def __init__(self, place: Place, driver: str, order: Order) -> None:
        super().__init__(place.fork_server, "", place.folder / "workers.log")
        self.module, self.arguments = "tests.contracts.worker", [driver, json.dumps(asdict(order))]


def show(folder: Path) -> None:
    """Print what the workers have logged and written, for a test that fails."""
    for file in (*folder.glob("*.log"), *folder.glob("journal")):
        print(file.read_text()[-4_000:])


class Contract:
    """Tests of one consumer: a subclass says which by its parameter ``driver``."""

    @pytest.fixture
    async def workers(
        self, driver: type[Driver], request: pytest.FixtureRequest, server: EmbeddedServer, redis: Redis,
        tmp_path: Path, fork_server: ForkServer,
    ) -> AsyncIterator[Workers]:  # fmt: skip
        """Yield what a test works with; leave out what the wire cannot do."""
        promise = request.node.originalname.removeprefix("test_")
        if reason := driver.apart.get(promise):
            pytest.skip(reason)
        async with driver(Place(server, redis, tmp_path, fork_server)) as opened:
            with ExitStack() as ends:
                yield Workers(opened, ends)
            show(tmp_path)

    async def test_handled_once(self, workers: Workers) -> None:
        """What is handled is settled, and stays away."""
        names = [f"m{number}" for number in range(30)]
        await workers.driver.send(*names)
        first = workers.start()
        await workers.all_is_through(*names)
        assert await asyncio.to_thread(first.stop) == 0
        workers.start()
        await workers.driver.send("last")
        await workers.all_is_through("last")
        assert Counter(workers.handled) == Counter([*names, "last"])

    async def test_killed_before_its_settlement(self, workers: Workers) -> None:
        """It comes again."""
        await workers.driver.send("a hang 1", "b")
        killed = workers.start(lease=workers.driver.shortest)
        await workers.until_begun("a")
        killed.kill()
        workers.start(lease=workers.driver.shortest)
        await workers.all_is_through("a", "b")
        handling = workers.begun("a")
        assert len(handling) == 2
        await until(lambda: not psutil.pid_exists(handling[0].pid))  # also a process of its own for a message

    async def test_killed_after_its_settlement(self, workers: Workers) -> None:
        """It does not come again."""
        await workers.driver.send("a")
        killed = workers.start(lease=workers.driver.shortest)
        await workers.all_is_through("a")
        killed.kill()
        workers.start(lease=workers.driver.shortest)
        await workers.driver.send("b")
        await workers.all_is_through("b")
        assert workers.handled == ["a", "b"]

    @pytest.mark.parametrize("forward", [False, True], ids=["before", "after"])
    async def test_lost_settlement(self, workers: Workers, *, forward: bool) -> None:
        """The connection ends before the server has the settlement, or before its answer: it is settled once."""
        proxy = workers.proxy()
        workers.start(port=proxy.port)
        await workers.driver.send("a hang 1")
        await workers.until_begun("a")
        fault = proxy.fault(*workers.driver.settles, forward=forward)
        workers.order.let("a")
        await workers.break_settlement(fault)
        await workers.until_settled()
        await workers.driver.send("b")
        await workers.all_is_through("b")
        assert workers.handled == ["a", "b"]

    async def test_lost_take(self, workers: Workers) -> None:
        """The answer that brings a message is lost: the message is not."""
        proxy = workers.proxy()
        fault = proxy.fault(*workers.driver.takes, forward=True)
        await workers.driver.send("a")
        workers.start(port=proxy.port, lease=workers.driver.shortest)
        await workers.break_settlement(fault)
        await workers.all_is_through("a")

    async def test_overslept(self, workers: Workers) -> None:
        """Who has slept beyond its lease settles nothing: the one that has the message now does."""
        await workers.driver.send("a hang 2")
        sleeper = workers.start(lease=workers.driver.shortest, ahead=1)
        await workers.until_begun("a")
        sleeper.signal(signal.SIGSTOP)
        workers.start(lease=workers.driver.shortest, ahead=1)
        await workers.until_begun("a", 2)
        sleeper.signal(signal.SIGCONT)
        await workers.let_first("a")
        await workers.driver.send("b")
        if workers.driver.is_shared:
            await workers.until_handled("b")
        else:
            await asyncio.sleep(0.5)  # timing: it tries to settle
        await workers.until_settled(1 if workers.driver.is_shared else 2)
        workers.order.let("a", workers.begun("a")[1].pid)
        await workers.until_settled()
        await workers.until_handled("a", "b")

    async def test_lease_that_ends_in_mid_settlement(self, workers: Workers) -> None:
        """The server gets a settlement after another worker has the message: it changes nothing."""
        proxy = workers.proxy()
        await workers.driver.send("a hang 2")
        late = workers.start(port=proxy.port, lease=workers.driver.shortest)
        await workers.until_begun("a")
        fault = proxy.fault(*workers.driver.settles, forward=False)
        workers.order.let("a", workers.begun("a")[0].pid)
        await until(fault.met.is_set)
        late.signal(signal.SIGSTOP)  # another of its connections may renew the lease
        workers.start(lease=4 * workers.driver.shortest)  # so that it has the message until the end
        await workers.until_begun("a", 2)
        fault.late()
        await until(fault.answered.is_set)
        late.signal(signal.SIGCONT)
        assert await workers.driver.left() == 1
        workers.order.let("a", workers.begun("a")[1].pid)
        await workers.until_settled()

    async def test_adopted_in_order(self, workers: Workers) -> None:
        """What a dead worker held comes first, and in order."""
        await workers.driver.send("a hang 1", "b", "c", "d")
        killed = workers.start(lease=workers.driver.shortest)
        await workers.until_begun("a")
        killed.kill()
        await asyncio.sleep(1.5 * workers.driver.shortest)  # timing: its lease has to end
        await workers.driver.send("e")
        workers.start(lease=workers.driver.shortest)
        await workers.all_is_through(*"abcde")
        assert workers.handled == [*"abcde"]

    async def test_order_holds(self, workers: Workers) -> None:
        names = [f"m{number}" for number in range(200)]
        workers.start()
        for first in range(0, 200, 40):
            await workers.driver.send(*names[first : first + 40])
        await workers.all_is_through(*names)
        assert workers.handled == names

    async def test_innocent_neighbour(self, workers: Workers) -> None:
        """A message that kills each worker is buried, and none of those that were in hand with it."""
        others, warm = [f"m{number}" for number in range(19)], [f"warm{number}" for number in range(60)]
        await workers.driver.send(*warm)
        options: dict[str, Any] = {"lease": workers.driver.shortest, "running": 20}
        first = workers.start(**options)
        await workers.all_is_through(*warm)  # now it takes many at a time
        await workers.driver.send(*others[:9], "poison die 99", *others[9:])
        await self._is_over(workers, first)
        await self._bury_by_deaths(workers, **options)
        await workers.all_is_through(*others)
        assert [each.message for each in await workers.driver.dead()] == ["poison die 99"]

    async def test_poison(self, workers: Workers) -> None:
        """It is buried though its worker starts again at once; ``attempts`` is 3."""
        await workers.driver.send("poison die 99")
        await self._bury_by_deaths(workers, lease=workers.driver.shortest)
        assert len(workers.begun("poison")) == 3
        [dead] = await workers.driver.dead()
        assert (dead.message, dead.attempts) == ("poison die 99", 3)

    async def _bury_by_deaths(self, workers: Workers, **options: Any) -> None:
        for _ in range(8):
            worker = workers.start(**options)
            if await self._is_over(workers, worker):
                return
        pytest.fail("eight workers died")

    @staticmethod
    async def _is_over(workers: Workers, worker: Replica) -> bool:
        """Wait until ``worker`` has died, or nothing is left; return whether nothing is."""

        async def is_over() -> bool:
            return not worker.running or await workers.driver.left() == 0

        await until(is_over)
        return worker.running

    async def test_failure_comes_again(self, workers: Workers) -> None:
        """A failure counts as an attempt."""
        await workers.driver.send("a fail 2", "b")
        workers.start()
        await workers.all_is_through("a", "b")
        assert [line.attempt for line in workers.begun("a")] == [1, 2, 3]
        assert await workers.driver.dead() == []

    async def test_dead_letter(self, workers: Workers) -> None:
        """It says why, and how often it was tried."""
        await workers.driver.send("a fail 99", "b")
        workers.start()
        await workers.all_is_through("b")
        assert len(workers.begun("a")) == 3
        [dead] = await workers.driver.dead()
        assert (dead.message, dead.attempts) == ("a fail 99", 3)
        assert "a fails" in dead.reason

    async def test_cancelled_handler(self, workers: Workers) -> None:
        """It costs no attempt: a message may be cancelled more often than it may fail."""
        await workers.driver.send("a cancel 4")
        workers.start(lease=workers.driver.shortest)
        await workers.all_is_through("a")
        assert len(workers.begun("a")) == 5
        assert await workers.driver.dead() == []

    async def test_stop_hands_back(self, workers: Workers) -> None:
        """At once, to others, while its worker handles what it has in hand."""
        warm = [f"m{number}" for number in range(60)]
        first = workers.start()
        await workers.driver.send(*warm)
        await workers.all_is_through(*warm)
        await workers.driver.send("a hang 1", *"bcdefg")
        await workers.until_begun("a")
        first.signal(signal.SIGTERM)
        workers.start()
        await workers.until_handled(*"bcdefg")
        workers.order.let("a")
        await workers.all_is_through("a")
        assert await asyncio.to_thread(first.wait) == 0
        assert Counter(workers.handled) == Counter([*warm, *"abcdefg"])

    async def test_full_server(self, workers: Workers) -> None:
        """Nothing is lost, and it goes on as soon as there is room."""
        await workers.driver.send("a hang 1", "b")
        workers.start()
        await workers.until_begun("a")
        await workers.driver.redis.config_set("maxmemory", 1)
        try:
            workers.order.let("a")
            await workers.until_handled("a")
            await asyncio.sleep(0.1)  # timing: it tries to settle
        finally:
            await workers.driver.redis.config_set("maxmemory", 0)
        await workers.all_is_through("a", "b")
        assert Counter(workers.handled) == Counter("ab")

    @pytest.mark.slow
    async def test_blocked_loop(self, workers: Workers) -> None:
        """A handler that blocks the event loop for longer than the lease keeps its message."""
        await workers.driver.send("a block 1")
        workers.start(lease=workers.driver.shortest)
        await workers.until_begun("a")
        workers.start(lease=workers.driver.shortest)
        await asyncio.sleep(3 * workers.driver.shortest + workers.driver.looks)  # timing: the lease would have ended
        await workers.driver.send("b")
        if workers.driver.is_shared:
            await workers.until_handled("b")
        assert len(workers.begun("a")) == 1
        workers.order.let("a")
        await workers.all_is_through("a", "b")

    @pytest.mark.slow
    async def test_idle(self, workers: Workers) -> None:
        """It sends few commands while nothing comes."""
        workers.start()
        await workers.driver.send("a")
        await workers.all_is_through("a")

        async def calls() -> Counter[str]:
            found = await workers.driver.redis.info("commandstats")
            return Counter({name: int(each["calls"]) for name, each in found.items()})

        before = await calls()
        await asyncio.sleep(IDLE_SECONDS)  # timing: what is counted is of this time
        sent = await calls() - before
        assert sent.total() <= MOST_WHEN_IDLE, sent
