"""Figures of ``penstock.outbox``, beside bare commits of SQLite and a bare fsync, in the same run."""

import asyncio
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Final

from bench.figures import Figure
from bench.outbox_side import BODY, KEY, SOON, publish
from bench.side import Side, side
from bench.testbed import OUT, PYTHON, Testbed, cpu_seconds
from penstock.base.ports import free_port
from penstock.lists import Lists
from penstock.outbox import Backoff, Outbox
from tests.support.harness import Service

AWAY: Final = Backoff([3600.0])
GROUP: Final = 64


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    rounds, backlog, waiting = (3, 20_000, 200_000) if quick else (7, 100_000, 1_000_000)
    return [
        lambda _: grouped(rounds, backlog // 10),
        lambda _: alone(rounds),
        lambda _: delivered(rounds, backlog, 1, 20_000),
        lambda _: delivered(rounds, backlog // 5, 10, 50_000),
        lambda _: many_waiting(waiting, waiting // 50),
        lambda bed: while_arriving(bed, max(rounds, 5), backlog),
        lambda bed: while_draining(bed, max(rounds, 5), backlog),
    ]


def grouped(rounds: int, count: int) -> Figure:
    """Measure durable publishes by 64 tasks at once over bare commits of the same rows in groups of 64, in pairs."""
    count = count // GROUP * GROUP
    ratios, ours = [], []

    async def measure(datadir: Path, db: sqlite3.Connection) -> None:
        async with Outbox(datadir=datadir, reconnects=AWAY) as outbox:
            for turn in range(rounds + 1):
                seconds = await publish(outbox, count, GROUP)
                bare = _bare_seconds(db, turn * count, count, GROUP)
                if turn:  # the first pair warms up
                    ratios.append(bare / seconds)
                    ours.append(count / seconds)

    with _published_to(1) as (datadir, _), closing(_bare(datadir)) as db:
        asyncio.run(measure(datadir / "publisher", db))
    note = f"{statistics.median(ours) / 1000:,.1f} k/s"
    return Figure("durable publishes of 1 KiB by 64 tasks / SQLite in groups of 64", "x", ratios, 0.7, True, note)


def alone(rounds: int) -> Figure:
    """Measure a durable publish over an append with fsync of as many bytes, in turns; medians of 500 each."""
    ratios, ours = [], []

    async def measure(datadir: Path, file: int) -> None:
        async with Outbox(datadir=datadir, reconnects=AWAY) as outbox:
            await publish(outbox, 2000, 1)
            for _ in range(rounds):
                published, bare = [], []
                for _ in range(500):
                    published.append(await publish(outbox, 1, 1))
                    begin = time.perf_counter()
                    os.write(file, BODY.encode())
                    os.fsync(file)
                    bare.append(time.perf_counter() - begin)
                ratios.append(statistics.median(published) / statistics.median(bare))
                ours.append(statistics.median(published))

    with _published_to(1) as (datadir, _):
        file = os.open(datadir / "bare", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            asyncio.run(measure(datadir / "publisher", file))
        finally:
            os.close(file)
    note = f"{statistics.median(ours) * 1000:.2f} ms"
    return Figure("a durable publish of 1 KiB alone / an append with fsync", "x", ratios, 1.5, note=note)


def delivered(rounds: int, backlog: int, subscribers: int, limit: float) -> Figure:
    """Measure copies a second from a backlog to subscribers in processes of their own, from first to last handler."""
    rates = []

    async def fill(datadir: Path) -> None:
        async with Outbox(datadir=datadir, reconnects=AWAY) as outbox:
            await publish(outbox, backlog, 512)

    async def deliver(datadir: Path, sides: list[Side], binds: list[str]) -> list[dict[str, float]]:
        async with Outbox(datadir=datadir, reconnects=SOON) as outbox:
            for each, bind in zip(sides, binds, strict=True):
                each.send("receive", *_at(datadir, bind), backlog)
            found = [await asyncio.to_thread(each.answer) for each in sides]
            await outbox.drain()
        return found

    with _published_to(subscribers) as (datadir, binds), ExitStack() as started:
        sides = [started.enter_context(side(*PYTHON, "bench.outbox_side")) for _ in binds]
        for _ in range(rounds):
            asyncio.run(fill(datadir / "publisher"))
            found = asyncio.run(deliver(datadir / "publisher", sides, binds))
            seconds = max(each["last"] for each in found) - min(each["first"] for each in found)
            rates.append(subscribers * backlog / seconds)
    name = f"copies a second of a backlog of {backlog:,} x 1 KiB to {subscribers} on loopback"
    return Figure(name, "/s", rates, limit, at_least=True)


def many_waiting(count: int, sample: int) -> list[Figure]:
    """Measure memory, publishing and a restart with ``count`` messages for a subscriber that is away."""
    with _published_to(1) as (datadir, binds):
        with side(*PYTHON, "bench.outbox_side") as publisher:
            found = publisher.order("fill", str(datadir / "publisher"), count, sample)
        first = asyncio.run(_first_delivery(datadir, binds[0]))
    name = f"with {count:,} messages waiting: "
    return [
        Figure(name + "memory of the process", "MB", [found["bytes"] / 1e6], 100),
        Figure(name + "a publish by 64 tasks / into an empty store", "x", [found["full"] / found["empty"]], 1.2),
        Figure(name + "restart to first delivery", "s", [first], 2),
    ]


def while_arriving(bed: Testbed, rounds: int, count: int) -> Figure:
    """Measure what services/outbox pushes to its list while messages arrive, over what it does once all are there.

    That is for each CPU second of its process: the publisher, which runs meanwhile, takes some of the machine.
    """
    shares, rates = list[float](), list[float]()

    async def pushed(site: Service, outbox: Outbox, *, arriving: bool) -> float:
        """Return messages a CPU second, of nearly all: the last ones wait for nobody."""
        await publish(outbox, count, 512)
        bed.redis.delete(OUT)
        if not arriving:
            bed.redis.set(OUT, "no list")
        with site:
            if not arriving:
                await outbox.drain()
                bed.redis.delete(OUT)
            await _until(lambda: bed.redis.llen(OUT) > 0)
            first, begin = int(bed.redis.llen(OUT)), cpu_seconds(site.pid)
            await _until(lambda: bed.redis.llen(OUT) > 0.9 * count)
            rate = (int(bed.redis.llen(OUT)) - first) / (cpu_seconds(site.pid) - begin)
            await outbox.drain()
            await _until(lambda: bed.redis.llen(OUT) == count)
            site.stop()
        return rate

    async def measure(folder: Path) -> None:
        async with Outbox(datadir=folder / "publisher", bind=f"127.0.0.1:{free_port()}", reconnects=SOON) as outbox:
            site = Service(
                "outbox", bed.log, redis=bed.url, redis_namespace="bench:outbox", datadir=folder / "site", out=OUT,
                bind=f"127.0.0.1:{free_port()}", subscribe=f"{KEY}@{outbox.advertise}",
            )  # fmt: skip
            with site:
                await _until(lambda: outbox.subscribers(KEY) > 0)
                site.stop()
            for _ in range(rounds):
                rates.append(await pushed(site, outbox, arriving=False))
                shares.append(await pushed(site, outbox, arriving=True) / rates[-1])

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))
    note = f"{statistics.median(rates):,.0f} a CPU second once all are there"
    name = f"outbox to a list while {count:,} x 1 KiB arrive / once they are there"
    return Figure(name, "x", shares, 0.5, True, note)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def while_draining(bed: Testbed, rounds: int, count: int) -> Figure:
    """Measure turns a second of another task while a fallback sends what waits on disk, over those without."""
    shares, rates = list[float](), list[float]()

    async def work() -> None:
        while True:
            sum(range(5_000))
            turns[0] += 1
            await asyncio.sleep(0)

    async def rate(end: Awaitable[object]) -> float:
        first, begin = turns[0], time.perf_counter()
        await end
        return (turns[0] - first) / (time.perf_counter() - begin)

    async def measure(folder: Path) -> None:
        for turn in range(rounds):
            bed.server.stop()
            async with Lists(bed.url, outbox=folder / str(turn)) as lists:
                await lists[OUT].push_many([BODY] * count)
                task = asyncio.create_task(work())
                idle = await rate(asyncio.sleep(1))
                await asyncio.to_thread(bed.server.start)
                await _until(lambda: lists.waiting < count)
                draining = await rate(_until(lambda: not lists.waiting))
                task.cancel()
            rates.append(idle)
            shares.append(draining / idle)

    turns = [0]
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))
    name = f"turns of a task while a fallback sends {count:,} x 1 KiB / without"
    return Figure(name, "x", shares, 0.5, True, f"{statistics.median(rates):,.0f}/s without")


async def _first_delivery(datadir: Path, bind: str) -> float:
    came = asyncio.Event()
    async with Outbox(datadir=_at(datadir / "publisher", bind)[0], bind=bind) as subscriber:
        subscriber.any(KEY, lambda _: came.set())
        begin = time.perf_counter()
        async with Outbox(datadir=datadir / "publisher", reconnects=SOON):
            await came.wait()
            return time.perf_counter() - begin


@contextmanager
def _published_to(subscribers: int) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder with a ``publisher`` that has ``subscribers``, which are away, and their addresses."""

    async def subscribe(datadir: Path, here: str, binds: list[str]) -> None:
        async with Outbox(datadir=datadir / "publisher", bind=here) as publisher:
            for bind in binds:
                folder, at = _at(publisher.datadir, bind)
                async with Outbox(datadir=folder, bind=at) as subscriber:
                    await subscriber.subscribe(publisher.advertise, KEY)
                    await subscriber.drain()

    with tempfile.TemporaryDirectory() as folder:
        binds = [f"127.0.0.1:{free_port()}" for _ in range(subscribers)]
        asyncio.run(subscribe(Path(folder), f"127.0.0.1:{free_port()}", binds))
        yield Path(folder), binds


def _at(publisher: Path, bind: str) -> tuple[str, str]:
    """Return the datadir of the subscriber at ``bind``, and ``bind``."""
    return str(publisher.parent / bind.replace(":", "-")), bind


def _bare(datadir: Path) -> sqlite3.Connection:
    db = sqlite3.connect(datadir / "bare.db", isolation_level=None)
    for statement in (
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "CREATE TABLE messages (seq INTEGER PRIMARY KEY, id BLOB NOT NULL, keys TEXT NOT NULL, data BLOB NOT NULL)",
        "CREATE TABLE deliveries (destination INTEGER, seq INTEGER, keys TEXT, PRIMARY KEY (destination, seq))"
        " WITHOUT ROWID",
    ):
        db.execute(statement)
    return db


def _bare_seconds(db: sqlite3.Connection, start: int, count: int, group: int) -> float:
    body = BODY.encode()
    begin = time.perf_counter()
    for first in range(start + 1, start + count + 1, group):
        seqs = range(first, first + group)
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO messages VALUES (?, ?, ?, ?)", [(seq, os.urandom(16), KEY, body) for seq in seqs])
        db.executemany("INSERT INTO deliveries VALUES (1, ?, NULL)", [(seq,) for seq in seqs])
        db.execute("COMMIT")
    return time.perf_counter() - begin
