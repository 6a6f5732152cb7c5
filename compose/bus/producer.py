"""Push the readings of a list to a queue of the bus: Node's busmq does it if it is there, else this program.

`make demo-bus` installs busmq into ``build/busmq`` if there are Node and npm. The variable PRODUCER=python chooses this
program.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Final

from compose.bus.names import CONTROL, READINGS, SOURCE, TAKEN, TTL
from compose.npm import NodePackage
from penstock.bus import Bus
from penstock.connection import connect

HERE: Final = Path(__file__).parent
BUSMQ: Final = NodePackage("busmq", HERE / "package.json")
BATCH: Final = 500


def is_node() -> bool:
    """Return whether Node's busmq is the producer."""
    return os.environ.get("PRODUCER") != "python" and BUSMQ.is_installed


async def produce() -> None:
    """Push what comes, until SIGTERM."""
    url, stop, goes = os.environ["REDIS"], asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    goes.set()
    async with connect(url) as redis, Bus(url) as bus:
        queue, control = bus.queue(READINGS), bus.channel(CONTROL, "producer", "consumer")
        await queue.attach(ttl=TTL)
        control.on("message", lambda message: goes.set() if str(message) == "resume" else goes.clear())
        await control.connect(ttl=TTL)
        while not stop.is_set():
            rows = await redis.lrange(TAKEN, 0, -1)  # what a run before has left comes first
            if goes.is_set() and not rows:
                async with redis.pipeline(transaction=False) as several:
                    for _ in range(BATCH):
                        several.lmove(SOURCE, TAKEN, "RIGHT", "LEFT")
                    rows = [row for row in reversed(await several.execute()) if row is not None]
            if rows:
                await queue.push_many(reversed(rows))
                await redis.delete(TAKEN)
            else:
                await asyncio.sleep(0.02)


def main() -> None:
    if is_node():
        BUSMQ.become(HERE / "producer.js")
    print("the producer is Python's: it was chosen, or Node's busmq is not installed", flush=True)
    asyncio.run(produce())


if __name__ == "__main__":
    main()
