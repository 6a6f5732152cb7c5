"""A producer or consumer of a queue as a process, which writes all that it sees to a journal.

It is set by its environment: REDIS (URLs, by commas), QUEUE, JOURNAL, WHO, ROLE (the name of a function), TTL,
DURABILITY and HANDLING (s for each message). SIGTERM ends it.
Each line of the journal is the time (ns, of one clock for all processes), WHO and an event:

- ``try FIRST COUNT``, before numbered messages are pushed; after that, ``ok NUMBER ID``, ``unsure NUMBER``, or
  ``refused NUMBER``;
- ``begin``, of a consumption; ``got ID BODY``; ``acked ID``, once it is confirmed; ``end``, in order.
"""

import asyncio
import os
import random
import signal
import time

import structlog

from penstock.base.errors import NotDurable, PenstockError, Unavailable, Unconfirmed
from penstock.bus import Bus, Queue

MOST_AT_ONCE = 20
"""Maximum number of messages that are pushed together."""
PAUSE_SECONDS = 0.005


class Journal:
    """Lines that survive a kill."""

    def __init__(self, path: str, who: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._who = who

    def note(self, event: str) -> None:
        os.write(self._file, f"{time.monotonic_ns()} {self._who} {event}\n".encode())


async def produce(queue: Queue, journal: Journal, who: str, stopped: asyncio.Event) -> None:
    number, rng = 0, random.Random()
    while not stopped.is_set():
        many = rng.randint(1, MOST_AT_ONCE)
        journal.note(f"try {number} {many}")
        numbers = range(number, number + many)
        pushes = [queue.push(f"{who}:{each}") for each in numbers]
        for each, result in zip(numbers, await asyncio.gather(*pushes, return_exceptions=True), strict=True):
            if isinstance(result, int):
                journal.note(f"ok {each} {result}")
            elif isinstance(result, Unconfirmed | NotDurable):
                journal.note(f"unsure {each}")
            elif isinstance(result, Unavailable):
                journal.note(f"refused {each}")
            else:
                raise result
        number += many
        await asyncio.sleep(PAUSE_SECONDS)


async def consume(queue: Queue, journal: Journal, stopped: asyncio.Event) -> None:
    """Acknowledge at random: each message or several together, at once or later."""
    rng = random.Random()

    def acknowledge(id_: int) -> "asyncio.Future[None]":
        acknowledged = queue.ack(id_)
        acknowledged.add_done_callback(
            lambda each: journal.note(f"acked {id_}") if not each.cancelled() and not each.exception() else None
        )
        return acknowledged

    async def stop() -> None:
        await stopped.wait()
        await queue.stop()

    stops = asyncio.create_task(stop())
    while not stopped.is_set():
        last = 0
        try:
            journal.note("begin")
            async for message in queue.consume(reliable=True):
                journal.note(f"got {message.id} {message}")
                last, chance = message.id, rng.random()
                if chance < 0.3:
                    await acknowledge(last)
                elif chance < 0.7:
                    acknowledge(last)
            if last:
                await acknowledge(last)
        except Unavailable:
            await asyncio.sleep(PAUSE_SECONDS)
    await stops
    journal.note("end")


async def forget(connected: Bus, queue: Queue, journal: Journal, stopped: asyncio.Event, handling: float) -> None:
    """Take and forget; end by a stop, by a cancellation or with the bus, at random."""

    async def handle() -> None:
        journal.note("begin")
        async for message in queue.consume():
            journal.note(f"got {message.id} {message}")
            await asyncio.sleep(handling)

    handles = asyncio.create_task(handle())
    await stopped.wait()
    match random.randrange(3):
        case 0:
            await queue.stop()
        case 1:
            handles.cancel()
        case _:
            await connected.disconnect()
    await asyncio.wait({handles})


async def main() -> None:
    given = os.environ
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    journal = Journal(given["JOURNAL"], given["WHO"])
    urls, durability = given["REDIS"].split(","), given.get("DURABILITY", "memory")
    async with Bus(*urls, patience=None, durability=durability) as connected:
        queue = connected.queue(given["QUEUE"])
        await queue.attach(ttl=int(given.get("TTL", "30")))
        structlog.get_logger().info("attached")
        if given["ROLE"] == "produce":
            await produce(queue, journal, given["WHO"], stopped)
        elif given["ROLE"] == "attach":
            await stopped.wait()
        elif given["ROLE"] == "forget":
            await forget(connected, queue, journal, stopped, float(given.get("HANDLING", "0")))
        else:
            await consume(queue, journal, stopped)
    structlog.get_logger().info("ended")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except PenstockError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
