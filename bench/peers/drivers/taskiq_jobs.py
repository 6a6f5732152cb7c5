"""Jobs through taskiq, with its Redis broker that acknowledges messages (streams)."""

import asyncio

from taskiq_redis import RedisStreamBroker

from bench.peers.drivers.orders import batches, mark, messages, orders, server

broker = RedisStreamBroker(url=server())


async def take(message: str) -> None:
    mark()


job = broker.task("take")(take)


async def produce() -> None:
    """Send each batch concurrently, as the calls are coroutines."""
    await broker.startup()
    source = messages()
    for count in orders():
        for batch in batches(count, source):
            await asyncio.gather(*map(job.kiq, batch))


if __name__ == "__main__":
    asyncio.run(produce())
