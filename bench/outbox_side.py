"""An outbox of the benchmark as a process: its orders are ``receive`` and ``fill``."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from penstock.outbox import Backoff, Message, Outbox

KEY: Final = "bench"
BODY: Final = "x" * 1024
SOON: Final = Backoff([0.05])


async def publish(outbox: Outbox, count: int, tasks: int = 64) -> float:
    """Publish ``count`` messages by ``tasks`` at once; return the seconds that it took."""
    numbers = iter(range(count))

    async def task() -> None:
        for _ in numbers:
            await outbox.publish(KEY, BODY)

    begin = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(tasks)))
    return time.perf_counter() - begin


async def receive(datadir: Path, bind: str, count: int) -> dict[str, float]:
    """Handle ``count`` messages; return when the first and the last were (s since the epoch)."""
    times = list[float]()
    done, left = asyncio.Event(), count

    def handler(_: Message) -> None:
        nonlocal left
        left -= 1
        if left == count - 1:
            times.append(time.time())
        if not left:
            times.append(time.time())
            done.set()

    async with Outbox(datadir=datadir, bind=bind) as outbox:
        outbox.every(KEY, handler)
        await done.wait()
        await outbox.drain()
    return {"first": times[0], "last": times[1]}


async def fill(datadir: Path, count: int, sample: int) -> dict[str, float]:
    """Publish ``count`` messages for a subscriber that is away; return what the first and the last ``sample`` cost."""
    async with Outbox(datadir=datadir, reconnects=Backoff([3600.0])) as outbox:
        await publish(outbox, sample)
        empty = min([await publish(outbox, sample) for _ in range(3)])
        await publish(outbox, count - 7 * sample)
        full = min([await publish(outbox, sample) for _ in range(3)])
        return {"empty": empty / sample, "full": full / sample, "bytes": psutil.Process().memory_info().rss}


ORDERS: Final = {"receive": receive, "fill": fill}


def main() -> None:
    for line in sys.stdin:
        name, datadir, *values = json.loads(line)
        print(json.dumps(asyncio.run(ORDERS[name](Path(datadir), *values))), flush=True)  # type: ignore[operator]


if __name__ == "__main__":
    main()
