"""Pushes numbers to a queue of a bus with an outbox until it is killed: its arguments are URL, DATADIR and DIRECTORY.

``begun`` in the directory is the first number that was not begun, ``accepted`` has those that the bus has accepted.
"""

import asyncio
import os
import sys
from pathlib import Path

from penstock.bus import Bus


async def main(url: str, datadir: str, directory: Path) -> None:
    begun = directory / "begun"
    number = int(begun.read_text()) if begun.exists() else 0
    accepted = os.open(directory / "accepted", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with Bus(url, outbox=datadir) as bus:
        queue = bus.queue("orders")
        await queue.attach(ttl=3600)
        while True:
            (directory / "begun.next").write_text(str(number + 1))
            (directory / "begun.next").rename(begun)
            await queue.push(str(number))
            os.write(accepted, b"%d\n" % number)
            number += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
