"""The consumers that there are: for each, how messages are sent, how a worker takes them, and what is left of them."""

import asyncio
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from redis.asyncio import Redis

from penstock.base.errors import Fenced, Occupied
from penstock.base.ports import free_port
from penstock.bus import Bus, Queue, keep_alive, taking
from penstock.core.backoff import Backoff
from penstock.hqueue import Queue as TaskQueue
from penstock.hqueue import Queues
from penstock.jobs import Attempt, Consumer, Jobs, Limit, ProcessJob
from penstock.lists import Lists
from penstock.outbox import Message, Outbox, listing
from penstock.outbox.store import Store
from penstock.sync import Lists as BlockingLists
from penstock.sync import Queues as BlockingQueues
from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from penstock.tracking.dead_letters import Letter
from tests.bus.gateway import SECRET, serving, url_of
from tests.contracts.handling import Failing, Order
from tests.jobs.given import dead as dead_entries
from tests.outbox.outboxes import SOON, outbox, stored
from tests.reliability.replica import Replica
from tests.support.tracked import policy

AT_ONCE: Final = Backoff((0.01,), 0, 0)
SOURCE: Final = "in"
Promises = Mapping[str, str]
"""Names of tests of the contract, without ``test_``, each with a reason."""
ENDS: Final = (signal.SIGTERM,)
LENGTHS: Final = """
local length = redis.call('LLEN', ARGV[1])
for _, name in ipairs(redis.call('KEYS', ARGV[2])) do length = length + redis.call('LLEN', name) end
return length
"""


class Dead(NamedTuple):
    """A message whose attempts are used up."""

    message: str
    reason: str
    attempts: int


class Place(NamedTuple):
    """Where a driver works: an empty server, a folder, and what starts processes."""

    server: EmbeddedServer
    redis: Redis
    folder: Path
    fork_server: ForkServer


@contextmanager
def goes_on() -> Iterator[None]:
    """Go on if a handler has had this task cancelled."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task
        task.uncancel()


class Driver:
    """One consumer: a test enters it, sends, and looks at what is left; ``work`` runs in a process of its own."""

    shortest: ClassVar[float] = 0.5
    """The shortest lease (s) that it can have."""
    looks: ClassVar[float] = 0
    """Seconds between two looks for what the dead have left."""
    settles: ClassVar[tuple[str, ...]] = ("EVALSHA",)
    takes: ClassVar[tuple[str, ...]] = ("EVALSHA",)
    """Words of the request that settles or takes, while nothing else is sent."""
    apart: ClassVar[Promises] = {}
    """Promises that its wire cannot keep, for good, and why."""
    is_shared: ClassVar[bool] = True
    """Whether several workers take from the same place at a time."""

    def __init__(self, place: Place) -> None:
        self.place, self.redis = place, place.redis
        self._ends = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ends.aclose()

    async def open(self) -> None:
        """Prepare what is there before the first message."""

    @property
    def port(self) -> int:
        """Return where workers connect to."""
        return self.place.server.port

    def url(self, port: int) -> str:
        """Return what a worker is told, if it shall connect to ``port``."""
        return f"redis://127.0.0.1:{port}/0"

    async def send(self, *messages: str) -> None:
        raise NotImplementedError

    async def left(self) -> int:
        """Return how many messages are neither settled nor dead."""
        raise NotImplementedError

    async def dead(self) -> list[Dead]:
        return []

    @staticmethod
    def work(order: Order) -> Any:
        """Take messages until SIGTERM; a coroutine function, or a function that blocks."""
        raise NotImplementedError


COUNTED: Final = ("innocent_neighbour", "poison", "dead_letter", "failure_comes_again", "cancelled_handler")
"""Promises about attempts."""
LEASED: Final = ("overslept", "lease_that_ends_in_mid_settlement", "blocked_loop")
"""Promises about leases."""
UNORDERED: Final = dict.fromkeys(("adopted_in_order", "order_holds"), "order is not promised")


class OverLists(Driver):
    """``penstock.lists``, a coroutine."""

    shortest = 1.0
    looks = 5
    takes = ("BLMOVE",)

    async def send(self, *messages: str) -> None:
        await self.redis.lpush(SOURCE, *messages)

    async def left(self) -> int:
        """In one step: what is adopted moves from list to list."""
        return int(await self.redis.eval(LENGTHS, 0, SOURCE, f"{SOURCE}:consumer:*"))

    async def dead(self) -> list[Dead]:
        found: Any = await self.redis.lrange("dead", 0, -1)
        letters = [Letter(raw) for raw in found]
        return [
            Dead((each.message or b"").decode(), each.text("reason") + each.text("error"), int(each.text("attempts")))
            for each in letters
        ]

    @staticmethod
    async def work(order: Order) -> None:
        options: dict[str, Any] = {"prefetch": order.ahead, "attempts": order.attempts, "dead": "dead"}
        async with Lists(order.url, lease=order.lease, patience=None, stop_signals=ENDS) as lists:
            while not lists.stopping:
                with goes_on():
                    async for message in lists[SOURCE].messages(**options):
                        with suppress(Failing), message:
                            await order.handle(str(message), message.attempt)


class OverBlockingLists(OverLists):
    """``penstock.sync.Lists``."""

    @staticmethod
    def work(order: Order) -> None:  # type: ignore[override]  # it blocks
        options: dict[str, Any] = {"prefetch": order.ahead, "attempts": order.attempts, "dead": "dead"}
        with BlockingLists(order.url, lease=order.lease, patience=None, stop_signals=ENDS) as lists:
            while True:
                with suppress(asyncio.CancelledError):
                    for message in lists[SOURCE].messages(**options):
                        with suppress(Failing), message:
                            order.handle_blocking(str(message), message.attempt)
                    return


class OverWork(OverLists):
    """Workers of mdispatch, by ``Lists.work``: what they say is counted there."""

    apart: ClassVar[Promises] = dict.fromkeys(COUNTED, "mdispatch counts the attempts")

    async def open(self) -> None:
        await policy(self.redis, out=SOURCE)

    @staticmethod
    async def work(order: Order) -> None:
        async with Lists(order.url, lease=order.lease, patience=None, stop_signals=ENDS) as lists:
            while not lists.stopping:
                with goes_on():
                    async for request in lists.work("demo", SOURCE).requests(prefetch=order.ahead):
                        with request:
                            await order.handle(str(request), request.attempt)


class OverJobs(Driver):
    """``penstock.jobs``, a coroutine for each job."""

    shortest = 0.3
    takes = ("XREADGROUP",)
    apart: ClassVar[Promises] = UNORDERED

    async def open(self) -> None:
        self._jobs = await self._ends.enter_async_context(Jobs(self.url(self.port)))
        self._sent = 0

    async def send(self, *messages: str) -> None:
        producer = self._jobs.producer()
        for message in messages:
            await producer.send("s", self._jobs.job().set("message", message.encode()))
        self._sent += len(messages)

    async def left(self) -> int:
        """By the completions that are kept."""
        return self._sent - int(await self.redis.xlen("hfxbus:done:s"))

    async def dead(self) -> list[Dead]:
        return [
            Dead(each["values"]["message"], str(each["errors"][-1]["error"]), int(each["attempts"]))
            for each in await dead_entries(self.redis)
        ]

    @classmethod
    async def work(cls, order: Order) -> None:
        os.environ["CONTRACT_ORDER"] = json.dumps(vars(order))
        consumer = Consumer(
            "g", concurrency=order.running, attempts=order.attempts, backoff=AT_ONCE, claim_after=order.lease,
            stop_timeout=60,
        )  # fmt: skip
        cls.add(consumer, order)
        async with Jobs(order.url, patience=None) as jobs:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, jobs.stop)
            await jobs.run(consumer)

    @staticmethod
    def add(consumer: Consumer, order: Order) -> None:
        @consumer.job("s", values=["message"])
        async def handle(job: Attempt) -> None:
            await order.handle((job.values["message"] or b"").decode(), job.number)


class OverLimitedJobs(OverJobs):
    """Jobs under a limit of the group."""

    apart: ClassVar[Promises] = UNORDERED | {"innocent_neighbour": "the limit decides which are in hand together"}

    @staticmethod
    def add(consumer: Consumer, order: Order) -> None:
        @consumer.job("s", values=["message"], limit=Limit(concurrency=order.running + 1))
        async def handle(job: Attempt) -> None:
            await order.handle((job.values["message"] or b"").decode(), job.number)


class OverJobsInThreads(OverJobs):
    """Plain functions of ``penstock.jobs``."""

    apart: ClassVar[Promises] = UNORDERED | {"cancelled_handler": "a thread cannot be cancelled"}

    @staticmethod
    def add(consumer: Consumer, order: Order) -> None:
        @consumer.job("s", values=["message"])
        def handle(job: Attempt) -> None:
            order.handle_blocking((job.values["message"] or b"").decode(), job.number)


class OverJobsInProcesses(OverJobs):
    """Functions of ``penstock.jobs`` in processes of their own."""

    apart: ClassVar[Promises] = {**OverJobsInThreads.apart} | {
        "overslept": "the process of a job that was lost is killed",
        "innocent_neighbour": "a job has its process for itself",
    }

    @staticmethod
    def add(consumer: Consumer, order: Order) -> None:
        handler: Any = handle_in_process
        consumer.job("s", values=["message"], in_process=True)(handler)


def handle_in_process(job: ProcessJob) -> None:
    """Handle a job in a process that its consumer has started."""
    order = Order(**json.loads(os.environ["CONTRACT_ORDER"]))
    order.handle_blocking((job.values["message"] or b"").decode(), job.number)


class OverBatchesOfJobs(OverJobs):
    """Handlers of ``penstock.jobs`` that get several jobs at once."""

    @staticmethod
    def add(consumer: Consumer, order: Order) -> None:
        @consumer.batch("s", order.running, values=["message"])
        async def handle(batch: list[Attempt]) -> None:
            for job in batch:
                try:
                    await order.handle((job.values["message"] or b"").decode(), job.number)
                except Failing as error:
                    job.fail(error)


class OverTasks(Driver):
    """``penstock.hqueue``, a coroutine."""

    settles = ("/ack",)
    takes = ("/fetch",)
    apart: ClassVar[Promises] = {"adopted_in_order": "the service hands out what is due, by index"}

    async def open(self) -> None:
        self._port = free_port()
        given: dict[str, Any] = {"redis_namespace": "work", "listen_port": self._port, "listen_host": "127.0.0.1"}
        given |= {"redis": self.place.server.url, "backoff_base": 0.01}
        service = Replica(self.place.fork_server, "hqueue", self.place.folder / "hqueue.log", **given)
        self._ends.enter_context(service)
        queues = await self._ends.enter_async_context(Queues(self.url(self._port), patience=None))
        self._queue: TaskQueue = queues["q"]
        self._messages = dict[str, str]()
        await self._queue.info()

    @property
    def port(self) -> int:
        return self._port

    def url(self, port: int) -> str:
        return f"http://127.0.0.1:{port}"

    async def send(self, *messages: str) -> None:
        added = await self._queue.add_many(messages, attempts=3)
        self._messages |= {each.id: message for each, message in zip(added, messages, strict=True)}

    async def left(self) -> int:
        return sum(not each.has_ended for each in await self._queue.statuses(most=1_000))

    async def dead(self) -> list[Dead]:
        found = [await self._queue.status(each.id) for each in await self._queue.statuses("dead")]
        return [Dead(self._messages[each.id], f"{each.reason} {each.error}", each.attempt) for each in found]

    @staticmethod
    async def work(order: Order) -> None:
        async with Queues(order.url, patience=None, stop_signals=ENDS) as queues:
            while not queues.stopping:
                with goes_on():
                    async for task in queues["q"].tasks(time_to_recover=order.lease, batch=order.ahead):
                        with task:
                            await order.handle(task.value, task.attempt)


class OverBlockingTasks(OverTasks):
    """``penstock.sync.Queues``."""

    @staticmethod
    def work(order: Order) -> None:  # type: ignore[override]  # it blocks
        with BlockingQueues(order.url, patience=None, stop_signals=ENDS) as queues:
            while True:
                with suppress(asyncio.CancelledError):
                    for task in queues["q"].tasks(time_to_recover=order.lease, batch=order.ahead):
                        with task:
                            order.handle_blocking(task.value, task.attempt)
                    return


class OverBareTasks(OverTasks):
    """A program that knows HTTP and nothing else."""

    apart: ClassVar[Promises] = {**OverTasks.apart} | dict.fromkeys(
        ("stop_hands_back", "cancelled_handler", "blocked_loop"), "what it does about that is its own affair"
    )

    @staticmethod
    def work(order: Order) -> None:  # type: ignore[override]  # it blocks
        who, told = f"worker {os.getpid()}", list[int]()
        signal.signal(signal.SIGTERM, lambda number, _: told.append(number))

        def post(verb: str, body: Mapping[str, Any]) -> Any:
            """Ask until there is an answer; return None for no task, and if the lease has ended."""
            request = urllib.request.Request(
                f"{order.url}/queues/q/{verb}", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            while True:
                try:
                    with urllib.request.urlopen(request, timeout=30) as reply:
                        return json.loads(reply.read() or b"null")
                except urllib.error.HTTPError as error:
                    error.close()
                    if error.code == 409:
                        return None
                except OSError:
                    pass
                time.sleep(0.02)  # a program by hand waits as it likes

        while not told:
            asked = {"workerId": who, "timeToRecover": order.lease, "wait": 1, "max": order.ahead}
            for task in (post("fetch", asked) or {"tasks": []})["tasks"]:
                outcome: dict[str, Any] = {"result": None}
                try:
                    order.handle_blocking(task["value"], task["attempt"])
                except Failing as error:
                    outcome = {"error": str(error)}
                post("ack", {"taskToken": task["taskToken"], **outcome})


class OverBus(Driver):
    """``penstock.bus`` in its default mode: what is taken is gone."""

    mode: ClassVar[Mapping[str, Any]] = {}
    apart: ClassVar[Promises] = (
        dict.fromkeys(COUNTED, "its wire counts no attempts")
        | dict.fromkeys((*LEASED, "stop_hands_back"), "one client consumes a queue")
        | dict.fromkeys(
            ("killed_before_its_settlement", "lost_settlement", "lost_take", "adopted_in_order", "full_server"),
            "what was taken is gone",
        )
    )

    async def open(self) -> None:
        bus = await self._ends.enter_async_context(Bus(self.place.server.url, patience=30))
        self._queue: Queue = bus.queue("q")
        await self._queue.attach(ttl=3600)

    async def send(self, *messages: str) -> None:
        await self._queue.push_many(messages)

    async def left(self) -> int:
        names = ("bus:queue:q:messages", "bus:queue:q:toack")
        return sum([await self.redis.llen(name) for name in names]) // 2

    @classmethod
    async def work(cls, order: Order) -> None:
        for module in (keep_alive, taking):
            vars(module)["LEASE_SECONDS"] = int(order.lease)
        async with cls.attached(order) as queue:
            stops = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stops.set)
            ends = asyncio.create_task(cls._stop(queue, stops))
            while not stops.is_set():
                try:
                    async for message in queue.consume(prefetch=order.ahead, **cls.mode):
                        await order.handle(str(message))
                        if cls.mode:
                            await message.ack()
                except (Occupied, Fenced):
                    await asyncio.sleep(0.02)
            await ends

    @staticmethod
    async def _stop(queue: Queue, stops: asyncio.Event) -> None:
        await stops.wait()
        await queue.stop()

    @classmethod
    @asynccontextmanager
    async def attached(cls, order: Order) -> AsyncIterator[Any]:
        async with Bus(order.url, patience=None) as bus:
            queue = bus.queue("q")
            await queue.attach(ttl=3600)
            yield queue


class OverReliableBus(OverBus):
    """``reliable=True``: each message is acknowledged."""

    mode: ClassVar[Mapping[str, Any]] = {"reliable": True}
    apart: ClassVar[Promises] = dict.fromkeys(COUNTED, "its wire counts no attempts") | dict.fromkeys(
        (*LEASED, "stop_hands_back"), "one client consumes a queue, and anybody may acknowledge"
    )


class OverExclusiveBus(OverBus):
    """``exclusive=True``, too: one consumer at a time, by a lease."""

    shortest = 1.0
    is_shared = False
    mode: ClassVar[Mapping[str, Any]] = {"reliable": True, "exclusive": True}
    apart: ClassVar[Promises] = dict.fromkeys(COUNTED, "its wire counts no attempts") | {
        "stop_hands_back": "a stop ends the lease, and what is in hand comes again"
    }


class OverFederatedBus(OverReliableBus):
    """A queue of another site, over a gateway."""

    settles = takes = ()

    async def open(self) -> None:
        await super().open()
        self._gateway = await self._ends.enter_async_context(serving(self.place.server.url))

    @property
    def port(self) -> int:
        return int(self._gateway.port)

    def url(self, port: int) -> str:
        return url_of(self._gateway).replace(str(self._gateway.port), str(port))

    @classmethod
    @asynccontextmanager
    async def attached(cls, order: Order) -> AsyncIterator[Any]:
        async with Bus(patience=None) as bus:
            queue = bus.federate(bus.queue("q"), order.url, secret=SECRET)
            await queue.attach(ttl=3600)
            yield queue


class OverOutbox(Driver):
    """Handlers of ``penstock.outbox``: what has come is on the disk of the worker."""

    apart: ClassVar[Promises] = dict.fromkeys(
        ("lost_settlement", "lost_take", "stop_hands_back", *LEASED), "one process has the disk with what has come"
    ) | {
        "cancelled_handler": "its handlers have no tasks of their own",
        "adopted_in_order": "what may have been in hand at a death comes alone, behind the others",
    }

    async def open(self) -> None:
        self._address = f"127.0.0.1:{free_port()}"
        self._publisher = await self._ends.enter_async_context(outbox(self.place.folder / "publisher"))
        async with outbox(self._here):
            pass  # so that there is a store to look at

    def url(self, port: int) -> str:
        return self._address

    async def send(self, *messages: str) -> None:
        for message in messages:
            await self._publisher.send("k", message, self._address)

    async def left(self) -> int:
        counts = stored(self._publisher.datadir, Store.counts)
        return counts.outgoing + stored(self._here, Store.counts).incoming

    async def dead(self) -> list[Dead]:
        found = stored(self._here, lambda store: [*listing.dead(store, data=True)])
        return [Dead((each.data or b"").decode(), str(each.error), each.attempts) for each in found]

    @property
    def _here(self) -> Path:
        return self.place.folder / "worker"

    @staticmethod
    async def work(order: Order) -> None:
        stops = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stops.set)
        async with Outbox(
            datadir=Path(order.folder, "worker"), bind=order.url, attempts=order.attempts, concurrency=order.running,
            backoff=SOON, reconnects=SOON,
        ) as opened:  # fmt: skip

            async def handle(message: Message) -> None:
                await order.handle(str(message), message.attempts)

            opened.every("k", handle)
            await stops.wait()


DRIVERS: Final[dict[str, type[Driver]]] = {
    "lists": OverLists,
    "lists, blocking": OverBlockingLists,
    "work": OverWork,
    "jobs": OverJobs,
    "jobs, limited": OverLimitedJobs,
    "jobs, threads": OverJobsInThreads,
    "jobs, processes": OverJobsInProcesses,
    "jobs, batches": OverBatchesOfJobs,
    "tasks": OverTasks,
    "tasks, blocking": OverBlockingTasks,
    "tasks, HTTP": OverBareTasks,
    "bus": OverBus,
    "bus, reliable": OverReliableBus,
    "bus, exclusive": OverExclusiveBus,
    "bus, federated": OverFederatedBus,
    "outbox": OverOutbox,
}
