"""Publishes on a disk until it is full, makes room, and prints what a peer got."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Final

from penstock.outbox import DiskFull, Outbox
from penstock.outbox.store import Store
from tests.outbox.machine import KEY, TASKS, body_of, number_in
from tests.outbox.outboxes import Got, outbox, stored
from tests.support.harness import eventually

FILLER_BYTES: Final = 1_000_000
LAST: Final = "there is room again"


async def publish_until_full(box: Outbox, address: str, task: int, accepted: set[int]) -> int:
    """Send numbers that only ``task`` sends; return how many were refused before the tenth refusal, that one too."""
    refused, number = 0, task
    while refused < 10:
        try:
            await box.send(KEY, body_of(number), address)
            accepted.add(number)
        except DiskFull:
            refused += 1
        number += TASKS
    return refused


async def main(disk: Path, other: Path) -> None:
    filler, accepted, got = disk / "filler", set[int](), Got()
    filler.write_bytes(bytes(FILLER_BYTES))
    async with outbox(other) as peer:
        address = peer.advertise
    async with outbox(disk / "box") as box:
        refused = sum(
            await asyncio.gather(*(publish_until_full(box, address, task, accepted) for task in range(TASKS)))
        )
        filler.unlink()
        await box.send(KEY, LAST, address)
        async with outbox(other, address) as peer:
            peer.every(KEY, got)
            await box.drain()
            await peer.drain()
            await eventually(lambda: LAST in got.texts)
    texts = [text for text in got.texts if text != LAST]
    counts = Counter(map(number_in, texts))
    found = {
        "accepted": len(accepted),
        "refused": refused,
        "lost": sorted(accepted - counts.keys()),
        "doubled": sorted(number for number, count in counts.items() if count > 1),
        "resumed": LAST in got.texts,
        "left": stored(disk / "box", Store.counts).outgoing,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*map(Path, sys.argv[1:])))
