"""Push numbered messages to a list, and print those that are confirmed: its arguments are the list and a name."""

import asyncio
import os
import sys
from itertools import count

from penstock.base.errors import Unconfirmed
from penstock.lists import Lists


async def main(target: str, name: str) -> None:
    async with Lists(os.environ["REDIS"], patience=None) as lists:
        for number in count():
            message = f"{name}:{number}"
            try:
                await lists[target].push(message)
            except Unconfirmed:
                continue
            os.write(1, message.encode() + b"\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
