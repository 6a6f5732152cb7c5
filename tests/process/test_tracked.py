"""The tracked composition, run as by a user, also with its data damaged: the demo must report every difference."""

import asyncio
import hashlib
import json
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from redis import Redis as Blocking
from redis.asyncio import Redis

from compose.tracked import demo
from compose.tracked.demo import read_outcome
from compose.tracked.worker import WARM, Worker
from penstock.testing.server import EmbeddedServer
from tests.support.demos import ROOT, demonstrate

DEMO = ("-m", "compose.tracked.demo")
PROCESSES = {"mpush", "archive", "alert", "monitor", "keeper", "pager"}
ROWS = demo.ROWS[::25]
COLD, HOT = b"2010/01/01 00:00,39.4", b"2010/06/25 16:00,70.0"

SAMPLE = """
import sys
from pathlib import Path
from compose.tracked import demo
demo.main(Path(sys.argv.pop()), demo.ROWS[::25])
"""
"""Program that runs the demo of the directory in its argument with ``ROWS``."""

THIEF = """
import os, signal, sys, time, redis
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
server = redis.Redis.from_url(os.environ["REDIS"], decode_responses=True)
while not (taken := server.zpopmin("tracked:alert:message:deadlines")):
    time.sleep(0.01)
server.delete("tracked:alert:message:" + taken[0][0])
while not server.lpop("tracked:alert:dead"):
    time.sleep(0.01)
signal.pause()
"""
"""Program that removes a message in flight with its record, and a dead letter."""


@pytest.fixture(scope="module")
def short_timeouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the composition with shorter timeouts, so messages die after 3.4 s; return its folder."""
    directory = tmp_path_factory.mktemp("tracked")
    procfile = (ROOT / "compose/tracked/Procfile").read_text()
    for leg in ("archive", "alert"):
        text = (ROOT / f"compose/tracked/mdispatch-{leg}.yaml").read_text()
        timeout = text.replace("messageTimeout: 3\n", "messageTimeout: 1\n")
        (directory / f"mdispatch-{leg}.yaml").write_text(timeout.replace("backoff: [1, 2]", "backoff: [0.2]"))
        procfile = procfile.replace(f"compose/tracked/mdispatch-{leg}.yaml", f"{directory}/mdispatch-{leg}.yaml")
    (directory / "Procfile").write_text(procfile)
    return directory


def warm(rows: list[bytes]) -> int:
    return sum(float(row.split(b",")[1]) >= WARM for row in rows)


def test_the_demo_follows_every_reading_to_its_end_on_a_server_of_its_own() -> None:
    done = demonstrate(None, *DEMO, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    output = json.loads(done.stdout)
    assert (output["holds"], output["differences"], output["pushed"]) == (True, [], 8759)
    archive, alert = output["legs"]["tracked:archive"], output["legs"]["tracked:alert"]
    assert 0 < archive.pop("responseTime")["half at most"] <= 10
    assert alert.pop("responseTime") == {}
    nothing = dict.fromkeys(archive, 0) | {"registered": 8759, "delivered": 8759}
    assert archive == nothing | {"failed attempts": 462, "retries": 462, "done": 8759}
    assert alert == nothing | {"timeouts": 3 * 8759, "retries": 2 * 8759, "dead": 8759}
    assert {name: each["sent"] for name, each in output["content"].items()} == {
        "tracked:archive: done": 8759,
        "tracked:archive: failed once": 462,
        "tracked:archive:kept": 8759,
        "tracked:archive:dead": 0,
        "tracked:alert:taken": 3 * 8759,
        "tracked:alert:dead": 8759,
    }
    assert {name: each["holds"] for name, each in output["audits"].items()} == {
        "tracked:mpush": True,
        "tracked:archive": True,
        "tracked:alert": True,
    }
    assert output["exitStatus"] == dict.fromkeys(PROCESSES, 0)


@pytest.fixture(scope="module")
def ran(short_timeouts: Path) -> Iterator[tuple[str, subprocess.CompletedProcess[str]]]:
    """Run the demo with ``ROWS``; yield its server's URL and the finished process."""
    with EmbeddedServer() as server:
        yield server.url, demonstrate(server.url, "-c", SAMPLE, str(short_timeouts))


@pytest.fixture
async def after(ran: tuple[str, object]) -> AsyncIterator["Redis"]:
    """Yield a client of the server after the demo; restore its data after the test."""
    async with Redis.from_url(ran[0]) as client:
        kept = {key: await client.dump(key) for key in await lasting(client)}
        yield client
        await client.delete(*await lasting(client))
        for key, value in kept.items():
            await client.restore(key, 0, value or b"")


async def lasting(redis: "Redis") -> list[bytes]:
    """Return all keys but those of tombstones, which the demo does not read."""
    keys: Any = await redis.keys()
    return [key for key in keys if not re.search(rb":message:(\d|xid:)", key)]


def figure(name: str, archive: int, alert: int) -> list[str]:
    """Return the words of a row of the demo's table."""
    return [*name.split(), f"{archive:,}", f"{alert:,}"]


def test_the_demo_prints_what_happened_on_each_leg(ran: tuple[str, subprocess.CompletedProcess[str]]) -> None:
    done, count = ran[1], len(ROWS)
    assert done.returncode == 0, done.stderr + done.stdout
    printed = [line.replace("│", " ").split() for line in done.stdout.splitlines()]
    for row in (
        figure("pushed", count, count),
        figure("registered", count, count),
        figure("delivered", count, count),
        figure("failed attempts", warm(ROWS), 0),
        figure("timeouts", 0, 3 * count),
        figure("retries", warm(ROWS), 2 * count),
        figure("done", count, 0),
        figure("done late", 0, 0),
        figure("done unknown", 0, 0),
        figure("dead", 0, count),
        figure("dead: timeout", 0, count),
        ["tracked:alert:dead", str(count), str(count), "0", "0", "0"],
        ["tracked:archive:kept", str(count), str(count), "0", "0", "0"],
        ["tracked:alert:in", str(count), str(count), "0", "0", "0", "0"],
    ):
        assert row in printed, row
    statuses = next(words for words in printed if words[:2] == ["Exit", "status"])
    assert {name: statuses[statuses.index(name) + 1].strip(",") for name in PROCESSES} == dict.fromkeys(PROCESSES, "0")
    assert "Nothing lost, nothing doubled: every message ended once, done or dead\n" in done.stdout
    assert warm(ROWS) > 5


async def lose(redis: "Redis") -> None:
    await redis.lrem("tracked:archive:kept", 1, ROWS[70].decode())


async def swap(redis: "Redis") -> None:
    """Replace a dead letter by another: all counts stay the same."""
    letter = await redis.lindex("tracked:alert:dead", 7)
    await redis.lset("tracked:alert:dead", 8, letter)  # type: ignore[arg-type]  # its stub: text


async def condemn(redis: "Redis") -> None:
    await redis.lpush("tracked:archive:dead", json.dumps({"message": "one that was done", "reason": "timeout"}))


async def forget(redis: "Redis") -> None:
    """Remove the last event of an entry of ``done`` events."""
    entries: Any = await redis.xrange("tracked:archive:events")
    name, fields = next(entry for entry in entries if entry[1][b"event"] == b"done")
    await redis.xdel("tracked:archive:events", name)
    if several := int(fields[b"count"]) - 1:
        fewer = {field: word.rpartition(b"\n")[0] or word for field, word in fields.items()}
        await redis.xadd("tracked:archive:events", fewer | {b"count": several})


async def miscount(redis: "Redis") -> None:
    await redis.hincrby("tracked:archive:metrics:done", "count", -1)


BROKEN: list[tuple[Callable[["Redis"], Awaitable[None]], list[str]]] = [
    (lose, [f"tracked:archive:kept: lost 1, e.g. {ROWS[70]!r}"]),
    (swap, ["tracked:alert:dead: lost 1, e.g.", "tracked:alert:dead: doubled 1, e.g."]),
    (
        condemn,
        [
            "tracked:archive: 1 dead letters say timeout after no attempts",
            "tracked:archive:dead: never sent 1, e.g. b'one that was done'",
        ],
    ),
    (forget, ["tracked:archive: done: lost 1, e.g."]),
    (
        miscount,
        [
            f"tracked:archive: done is {len(ROWS) - 1}, expected {len(ROWS)}",
            f"tracked:archive: registered {len(ROWS)} is not",
        ],
    ),
]


@pytest.mark.parametrize(("damage", "expected"), BROKEN)
async def test_each_damage_after_a_run_is_reported_and_nothing_else(
    after: "Redis", damage: Callable[["Redis"], Awaitable[None]], expected: list[str]
) -> None:
    statuses = dict.fromkeys(PROCESSES, 0)
    assert (await read_outcome(after, ROWS, statuses)).differences == []
    await damage(after)
    differences = (await read_outcome(after, ROWS, statuses)).differences
    assert len(differences) == len(expected), differences
    for line, words in zip(sorted(differences), sorted(expected), strict=True):
        assert line.startswith(words)


async def test_a_message_taken_by_hand_is_reported_and_the_demo_ends(
    redis: "Redis", redis_url: str, short_timeouts: Path
) -> None:
    (short_timeouts / "thief.py").write_text(THIEF)
    robbed = short_timeouts / "robbed"
    robbed.mkdir()
    procfile = (short_timeouts / "Procfile").read_text().rstrip()
    (robbed / "Procfile").write_text(f"{procfile}\nthief: exec python {short_timeouts}/thief.py\n")
    rows = [*ROWS[:20], COLD, HOT]
    await redis.set("tracked:demo", "")
    await redis.lpush("tracked:alert:dead", "of an earlier demo")
    outcome = await demo.run(redis_url, rows, robbed)
    count, differences = len(rows), outcome.differences
    assert "tracked:alert:taken: lost 2, e.g." in str(differences)
    assert "tracked:alert:dead: lost 2, e.g." in str(differences)
    assert f"tracked:alert: dead is {count - 1}, expected {count}" in differences
    [imbalance] = [line for line in differences if line.startswith(f"tracked:alert: registered {count} is not")]
    assert imbalance.endswith(": 1 missing")
    assert not [line for line in differences if line.startswith("tracked:archive")]
    assert set(outcome.ending.statuses) == PROCESSES | {"thief"}


@pytest.fixture
async def working(redis: "Redis", redis_url: str) -> AsyncIterator[Callable[[str], None]]:
    """Yield a function that starts the worker of a branch."""
    started: list[tuple[Worker, Thread]] = []

    def start(leg: str) -> None:
        worker = Worker(Blocking.from_url(redis_url), leg)
        started.append((worker, Thread(target=worker.run)))
        started[-1][1].start()

    yield start
    for worker, thread in started:
        worker.stop()
        await asyncio.to_thread(thread.join)
        worker.server.close()


async def said(redis: "Redis", entries: int) -> list[bytes]:
    """Wait for ``entries`` entries of the archive worker's done list; return them oldest first."""
    while await redis.llen("tracked:archive:done") < entries:
        await asyncio.sleep(0.01)
    found: Any = await redis.lrange("tracked:archive:done", 0, -1)
    return list(found)[::-1]


def xid(row: bytes) -> str:
    return hashlib.sha1(row).hexdigest()


async def test_a_worker_says_done_by_xid_and_refuses_what_is_warm_once(
    redis: "Redis", working: Callable[[str], None]
) -> None:
    await redis.lpush("tracked:archive:out", COLD, HOT, b"12345", b"what?")
    working("archive")
    cold, hot, number, text = await said(redis, 4)
    assert cold.decode() == xid(COLD)
    assert json.loads(hot) == {"xid": xid(HOT), "error": "70 F or more: look twice"}
    assert json.loads(number) == {"xid": "12345", "error": "no reading", "retry": False}
    assert json.loads(text) == {"xid": xid(b"what?"), "error": "no reading", "retry": False}
    await redis.lpush("tracked:archive:out", HOT)
    assert (await said(redis, 5))[4].decode() == xid(HOT)
    assert await redis.lrange("tracked:archive:kept", 0, -1) == [HOT, COLD]
    assert not await redis.exists("tracked:archive:working")


async def test_a_worker_begins_with_what_a_killed_one_had_in_hand(
    redis: "Redis", working: Callable[[str], None]
) -> None:
    await redis.lpush("tracked:archive:working", COLD)
    working("archive")
    assert await said(redis, 1) == [xid(COLD).encode()]
    assert await redis.lrange("tracked:archive:kept", 0, -1) == [COLD]
