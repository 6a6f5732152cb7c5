"""Site two: take the daily means of site one through its gateway, and keep them on a server of its own."""

import asyncio
import os
import signal

from compose.bus.names import ARRIVED, DAILY, TTL
from penstock.bus import Bus
from penstock.connection import connect


async def main() -> None:
    gateway = os.environ.get("GATEWAY_URL", "ws://localhost:8797/bus")
    secret = os.environ.get("GATEWAY_SECRET", "for-demos-only")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connect(os.environ.get("SITE_TWO") or os.environ["REDIS"]) as redis, Bus(patience=None) as bus:
        means = bus.federate(bus.queue(DAILY), gateway, secret=secret)

        async def keep() -> None:
            await means.attach(ttl=TTL)
            async for message in means.consume(reliable=True):
                day, _, mean = str(message).partition(",")
                await redis.hset(ARRIVED, day, mean)
                await message.ack()

        keeping, stopping = asyncio.ensure_future(keep()), asyncio.ensure_future(stop.wait())
        await asyncio.wait({keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
