"""kill -9 of a program with an outbox, and of the server: what it was told is kept arrives once, in order."""

import asyncio
import random
import time
from contextlib import ExitStack
from pathlib import Path

import redis as sync

from penstock.lists import Lists
from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.replica import Replica
from tests.reliability.spool_producer import LISTS
from tests.support.harness import ROUNDS, eventually, rounds, until


def producer(fork_server: ForkServer, directory: Path, url: str) -> Replica:
    given = {"url": url, "datadir": directory / "outbox", "journal": directory / "journal"}
    found = Replica(fork_server, "spool_producer", directory / "log", **given)
    found.module = "tests.reliability.spool_producer"
    return found


def kept(directory: Path) -> dict[str, list[bytes]]:
    """Return what the program was told is kept, by list."""
    found: dict[str, list[bytes]] = {name: [] for name in LISTS}
    for line in (directory / "journal").read_text().splitlines():
        name, _, message = line.partition(" ")
        found[name].append(message.encode())
    return found


def account(url: str, directory: Path) -> int:
    """Send what waits, and compare what the lists hold with the journal; return how many arrived."""

    async def deliver() -> None:
        async with Lists(url, outbox=directory / "outbox") as lists:
            await eventually(lambda: not lists.waiting)

    asyncio.run(deliver())
    many = 0
    with sync.Redis.from_url(url) as redis:
        for name, wanted in kept(directory).items():
            found: list[bytes] = redis.lrange(name, 0, -1)[::-1]
            many += len(found)
            assert len({*found}) == len(found), "doubled"
            assert {*wanted} <= {*found}, "lost"
            last = dict[bytes, int]()
            for message in found:
                who, _, number = message.partition(b" ")
                assert int(number) > last.get(who, 0), (name, message)
                last[who] = int(number)
    return many


def test_what_a_killed_program_was_told_is_kept_arrives_once_and_in_order(
    fork_server: ForkServer, tmp_path: Path, rng: random.Random
) -> None:
    with ExitStack() as started:
        server = started.enter_context(EmbeddedServer(aof=True))
        program = producer(fork_server, tmp_path, server.url)
        started.enter_context(program)
        for place in rounds():
            before = sum(map(len, kept(tmp_path).values())) if (tmp_path / "journal").exists() else 0
            until(lambda before=before: program.running and _grown(tmp_path, before + 20))  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.05))
            if place % 3 == 0:
                server.kill()
                time.sleep(rng.uniform(0, 0.3))
                if place % 2:
                    program.kill()
                    program.start()
                server.start()
            else:
                program.kill()
                program.start()
        program.kill()
        assert account(server.url, tmp_path) >= 20 * ROUNDS


def _grown(directory: Path, least: int) -> bool:
    path = directory / "journal"
    return path.exists() and path.read_bytes().count(b"\n") >= least
