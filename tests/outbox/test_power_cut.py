"""Nothing that an outbox has acknowledged is lost when the power is cut, whatever of the rest the disk has kept."""

import os
import random
import subprocess
import sys
from pathlib import Path

from penstock.outbox.lock import Lock
from penstock.outbox.store import Store
from tests.outbox.power import Disk, keeps, recorded, recorder

WRITER = """
import asyncio, os, sys
from penstock.outbox import Outbox

async def main():
    for start in (0, 20):
        async with Outbox(datadir=sys.argv[1]) as outbox:
            async def send(n):
                await outbox.send("k", "%d " % n + "x" * 500, "127.0.0.1:9")
                os.access(sys.argv[1] + "/told:%d" % n, os.F_OK)
            for n in range(start, start + 10):
                await send(n)
            await asyncio.gather(*[send(n) for n in range(start + 10, start + 20)])

asyncio.run(main())
"""


def test_nothing_acknowledged_is_lost_when_the_power_is_cut(tmp_path: Path) -> None:
    datadir, record, seed = tmp_path / "made" / "datadir", tmp_path / "record", random.randrange(2**32)
    datadir.parent.parent.joinpath("cuts").mkdir()
    recording = {"LD_PRELOAD": str(recorder(tmp_path)), "RECORDED": str(tmp_path), "RECORD": str(record)}
    subprocess.run([sys.executable, "-c", WRITER, datadir], env=os.environ | recording, check=True)
    dice, disk, told, synced = random.Random(seed), Disk(datadir), set[int](), set[Path]()
    done = [each for each in recorded(record) if each.path != record]
    cuts = {number for number, each in enumerate(done) if each.what == "told"}
    cuts |= set(dice.sample(range(len(done)), 40))
    for number, each in enumerate(done):
        disk.do(each)
        if each.what == "told":
            told.add(int(each.path.name.removeprefix("told:")))
            assert {tmp_path, datadir.parent} <= synced, "the names of new directories are on disk"
        elif each.what == "sync":
            synced.add(each.path)
        if number in cuts:
            left = tmp_path / "cuts" / str(number)
            disk.lose_power(left, keeps(dice, dice.choice([0.0, 0.5, 0.95, 1.0])))
            assert told <= kept(left), f"seed {seed}, cut {number}, behind {each[:3]}"
    assert told == set(range(40))


def kept(datadir: Path) -> set[int]:
    """Open what is left as an outbox does; return the numbers of the messages."""
    lock = Lock(datadir)
    try:
        store = Store.open(datadir, has_log=lock.has_log)
        lock.note_log(False)
        try:
            return {int(each.data.split()[0]) for each in store.next_outgoing(1, 0, 1 << 30)}
        finally:
            store.close()
    finally:
        lock.release()
