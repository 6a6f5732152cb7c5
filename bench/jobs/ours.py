"""Jobs through penstock.jobs: ``python -m bench.jobs.ours URL`` reads orders, as ``hfx.js`` does, and prints JSON.

``limited STREAM COUNT KEYS`` does jobs of so many keys under a limit of each, ``large STREAM COUNT SIZE`` some with
large values, and ``bare STREAM COUNT SIZE`` does the same with a bare client and the same commands.
"""

import asyncio
import json
import statistics
import sys
import time
from typing import Any, Final

from bench.connection import Connection, packed
from common.app import fastest_loop
from penstock.jobs import Attempt, Consumer, Jobs, Limit

AT_A_TIME: Final = 500
LARGE_AT_A_TIME: Final = 16
WEEK_MS: Final = 604_800_000


class Program:
    """Does what the orders say."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs, self._producer = jobs, jobs.producer()
        self._answering: asyncio.Task[None] | None = None

    async def produce(self, stream: str, count: int, size: int, keys: int = 0) -> dict[str, float]:
        """Send jobs with a value, many at a time."""
        value, send = b"x" * size, self._producer.send
        begin = time.perf_counter()
        for first in range(0, count, AT_A_TIME):
            numbers = range(first, min(first + AT_A_TIME, count))
            await asyncio.gather(
                *(send(stream, {"in": value}, key=f"k{number % keys}" if keys else None) for number in numbers)
            )
        return {"seconds": time.perf_counter() - begin}

    async def consume(self, stream: str, count: int, keys: int = 0) -> dict[str, float]:
        """Do the first jobs of a stream, 100 at a time, with a new group."""
        consumer = Consumer(f"g{time.monotonic_ns()}", concurrency=100, trim=False)
        seen = 0

        async def work(job: Attempt) -> None:
            nonlocal seen
            assert job.values["in"]
            seen += 1
            if seen == count:
                consumer.stop()

        limit = Limit(concurrency=100, by_key=True) if keys else None
        consumer.job(stream, values=["in"], limit=limit)(work)
        begin = time.perf_counter()
        await self._jobs.run(consumer)
        return {"seconds": time.perf_counter() - begin}

    async def limited(self, stream: str, count: int, keys: int) -> dict[str, float]:
        """Send and do jobs of so many keys under a limit."""
        await self.produce(stream, count, 32, keys)
        return await self.consume(stream, count, keys)

    async def answer(self, stream: str) -> dict[str, float]:
        """Answer requests for ever."""
        consumer = Consumer("workers", concurrency=100)

        @consumer.job(stream, values=["in"], result="out")
        async def work(job: Attempt) -> bytes | None:
            return job.values["in"]

        self._answering = asyncio.create_task(self._jobs.run(consumer))
        await asyncio.sleep(0.3)
        return {}

    async def ask(self, stream: str, count: int, at_a_time: int) -> dict[str, float]:
        """Send requests and wait for their answers."""
        waits = list[float]()

        async def ask(many: int) -> None:
            for _ in range(many):
                begin = time.perf_counter()
                sent = await self._producer.send(stream, {"in": b"x" * 32}, wait_for=["workers"])
                out = await sent.result("workers", "out", bytes, 10)
                assert len(out) == 32
                waits.append(time.perf_counter() - begin)

        begin = time.perf_counter()
        await asyncio.gather(*(ask(count // at_a_time) for _ in range(at_a_time)))
        return {"seconds": time.perf_counter() - begin, "p50": statistics.median(waits)}

    async def large(self, stream: str, count: int, size: int) -> dict[str, float]:
        """Send and do jobs with large values, some at a time."""
        value = b"x" * size
        consumer = Consumer("large", concurrency=LARGE_AT_A_TIME)
        seen = 0

        async def work(job: Attempt) -> None:
            nonlocal seen
            [found] = await job.get("in", bytes).pull()
            assert len(found) == size
            seen += 1
            if seen == count:
                consumer.stop()

        consumer.job(stream)(work)
        begin = time.perf_counter()
        for _ in range(0, count, LARGE_AT_A_TIME):
            await asyncio.gather(*(self._producer.send(stream, {"in": value}) for _ in range(LARGE_AT_A_TIME)))
        await self._jobs.run(consumer)
        return {"seconds": time.perf_counter() - begin}


def bare(port: int, stream: str, count: int, size: int) -> dict[str, float]:
    """Do as ``large`` with a bare client: SET, XADD; XREADGROUP, GET, XACK, some at a time."""
    connection, value, many = Connection(port), b"x" * size, LARGE_AT_A_TIME
    connection.exchange(packed("XGROUP", "CREATE", stream, "g", "0", "MKSTREAM"), 1)
    begin = time.perf_counter()
    for first in range(0, count, many):
        ids = [f"{stream}:{number}" for number in range(first, first + many)]
        commands = [packed("SET", id, value, "PX", WEEK_MS) + packed("XADD", stream, "*", "job", id) for id in ids]
        connection.exchange(b"".join(commands), 2 * many)
    read = packed("XREADGROUP", "GROUP", "g", "c", "COUNT", many, "STREAMS", stream, ">")
    for _ in range(0, count, many):
        [[[_, entries]]] = connection.exchange(read, 1)
        found = connection.exchange(b"".join(packed("GET", fields[1]) for _, fields in entries), len(entries))
        assert all(len(each) == size for each in found)
        connection.exchange(packed("XACK", stream, "g", *(entry for entry, _ in entries)), 1)
    return {"seconds": time.perf_counter() - begin}


async def main(url: str) -> None:
    """Read orders until standard input ends."""
    async with Jobs(url) as jobs:
        program = Program(jobs)
        while line := await asyncio.to_thread(sys.stdin.readline):
            verb, stream, *numbers = line.split()
            words: list[Any] = [stream, *map(int, numbers)]
            if verb == "bare":
                found = bare(int(url.rpartition(":")[2].partition("/")[0]), *words)
            else:
                found = await getattr(program, verb)(*words)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(main(sys.argv[1]))
