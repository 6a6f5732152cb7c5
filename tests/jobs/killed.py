"""Programs that load.py starts for tests that kill them, and that print lines.

``python -m tests.jobs.killed worker|producer URL`` runs one.
"""

import asyncio
import os
import signal
import sys

from penstock.core.backoff import Backoff
from penstock.jobs import Attempt, Consumer, Final, Jobs

GROUPS = ("g", "h")
CLAIM_AFTER = 0.5
POISON = (5, 60)


def say(*words: object) -> None:
    print(*words, flush=True)


def outcome(group: str, number: int) -> str:
    """Return how the job ``number`` ends in a group."""
    if group == "g" and number in POISON:
        return "poison"
    return "bad" if group == "g" and number % 11 == 3 else "done"


def consumer(group: str) -> Consumer:
    """Return a consumer that squares; some jobs fail at first, some for ever, and some kill its process three times."""
    worker = Consumer(group, concurrency=4, attempts=100, claim_after=CLAIM_AFTER, backoff=Backoff((0.01, 0.1), 0, 0))

    @worker.job("s", values=["n"], result=f"out-{group}")
    async def square(job: Attempt) -> int:
        number = int(job.values["n"] or b"")
        say("begun", group, number)
        if outcome(group, number) == "poison" and job.number <= 3:
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0.005 if number % 50 else 0.2)
        if outcome(group, number) != "done":
            raise Final(f"never {number}")
        if number % 7 == 0 and job.number <= 2:
            raise ValueError(f"not yet {number}")
        return number * number

    return worker


async def work(url: str) -> None:
    async with Jobs(url) as jobs:
        await asyncio.gather(*(jobs.run(consumer(group)) for group in GROUPS))


async def produce(url: str, first: int) -> None:
    async with Jobs(url) as jobs:
        producer = jobs.producer("P")
        while True:
            say("sending", first)
            await producer.send("s", jobs.job(f"J{first}").set("n", first))
            say("sent", first)
            first += 1
            await asyncio.sleep(0.02 + first / 40_000)  # ever slower: all completions of a long run are kept


if __name__ == "__main__":
    role, at, *more = sys.argv[1:]
    asyncio.run(produce(at, int(more[0])) if role == "producer" else work(at))
