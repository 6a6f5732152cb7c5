"""A worker on ``penstock.lists`` that moves messages: ``python -m tests.reliability.list_worker SOURCE TARGET``."""

import asyncio
import os
import signal
import sys

from penstock.lists import Lists


async def main(source: str, target: str) -> None:
    url = os.environ["REDIS"]
    async with Lists(url, lease=1, patience=None, stop_signals=[signal.SIGTERM]) as lists:
        async for message in lists[source].messages(prefetch=50):
            with message:
                message.also_push(target, message.body)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
