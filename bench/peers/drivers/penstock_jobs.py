"""Jobs through penstock.jobs: ``python -m bench.peers.drivers.penstock_jobs produce|work``."""

import asyncio
import sys

from bench.peers.drivers.orders import batches, mark, messages, orders, server
from common.app import fastest_loop
from penstock.jobs import Attempt, Consumer, Jobs

consumer = Consumer("workers", concurrency=100)


@consumer.job("take", values=["message"])
async def take(job: Attempt) -> None:
    """Do one job."""
    assert job.values["message"]
    mark()


async def produce(jobs: Jobs) -> None:
    """Send each batch concurrently."""
    source, wanted, producer = messages(), orders(), jobs.producer()
    while count := await asyncio.to_thread(next, wanted, 0):
        for batch in batches(count, source):
            await asyncio.gather(*(producer.send("take", {"message": each.encode()}) for each in batch))


async def main(verb: str) -> None:
    """Produce, or work for ever."""
    async with Jobs(server()) as jobs:
        await (produce(jobs) if verb == "produce" else jobs.run(consumer))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(main(sys.argv[1]))
