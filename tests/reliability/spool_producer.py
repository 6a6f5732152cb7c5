"""A program that pushes with an outbox as a process, until it is killed; a journal says what it was told is kept.

It is set by its environment: SPOOL_PRODUCER_URL, _DATADIR and _JOURNAL. Messages are ``<pid> <number>``, and go to two
lists in turn; several tasks push at once.
"""

import asyncio
import os
import random

from penstock.lists import Lists

LISTS = "one", "two"
TASKS = 4


async def main() -> None:
    url, datadir, path = (os.environ[f"SPOOL_PRODUCER_{name}"] for name in ("URL", "DATADIR", "JOURNAL"))
    journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    async def push_all(who: int) -> None:
        number = 0
        while True:
            number += 1
            message, name = f"{os.getpid()}.{who} {number}", LISTS[number % len(LISTS)]
            await lists[name].push(message)
            os.write(journal, f"{name} {message}\n".encode())
            await asyncio.sleep(random.uniform(0, 0.004))

    async with Lists(url, outbox=datadir) as lists:
        await asyncio.gather(*map(push_all, range(TASKS)))


if __name__ == "__main__":
    asyncio.run(main())
