"""Publisher, subscriber or both are killed, at random and at commits: all that was accepted is handled, whole."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from penstock.base.ports import free_port
from penstock.outbox.store import Store
from tests.outbox.machine import KEY, Machine, body_of
from tests.outbox.outboxes import outbox, outgoing, stored, subscribed, texts
from tests.support.harness import ROOT, rounds, until

pytestmark = pytest.mark.slow
COMMITS = 24


def _pair(tmp_path: Path) -> tuple[Machine, Machine]:
    """Return a publisher and a subscriber that has subscribed."""
    here, there = (f"127.0.0.1:{free_port()}" for _ in range(2))

    async def subscribe() -> None:
        async with outbox(tmp_path / "a", here) as a, outbox(tmp_path / "b", there) as b:
            await subscribed(b, a, KEY)

    asyncio.run(subscribe())
    return Machine("publisher", tmp_path / "a", here), Machine("subscriber", tmp_path / "b", there)


@pytest.mark.parametrize("victims", [["publisher"], ["subscriber"], ["publisher", "subscriber"]], ids="-".join)
def test_kills_lose_nothing_and_double_only_what_a_killed_subscriber_handled(
    tmp_path: Path, victims: list[str]
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    publisher, subscriber = _pair(tmp_path)
    with publisher, subscriber:
        machines = {"publisher": publisher, "subscriber": subscriber}
        for machine in machines.values():
            machine.start()
        for number in rounds(lambda: len(set(subscriber.numbers())) > 100):
            for victim in victims:
                machine = machines[victim]
                if number % 2:
                    until(partial(machine.has_more_than, machine.size), timeout=300)
                    time.sleep(chance.uniform(0, 0.1))
                    machine.kill()
                    machine.start()
                else:
                    machine.kill()
                    machine.start(f"{chance.choice(['before', 'after'])}:{chance.randrange(2, 40)}")
                    assert machine.wait() == -signal.SIGKILL, machine.log.read_text()[-3000:]
                    machine.start()
        _end(publisher, subscriber)
    _account(tmp_path, publisher, subscriber, doubles="subscriber" in victims)


@pytest.mark.parametrize("victim", ["publisher", "subscriber"])
def test_a_kill_before_or_after_any_commit_loses_nothing(tmp_path: Path, victim: str) -> None:
    publisher, subscriber = _pair(tmp_path)
    with publisher, subscriber:
        machine = {"publisher": publisher, "subscriber": subscriber}[victim]
        for each in (publisher, subscriber):
            each.start()
        machine.kill()
        for commit in range(1, COMMITS + 1):
            for moment in ("before", "after"):
                machine.start(f"{moment}:{commit}")
                assert machine.wait() == -signal.SIGKILL, machine.log.read_text()[-3000:]
        machine.start()
        _end(publisher, subscriber)
    _account(tmp_path, publisher, subscriber, doubles=victim == "subscriber")


def _end(publisher: Machine, subscriber: Machine) -> None:
    """Wait until some more is published; stop both."""
    enough = len(publisher.numbers()) + 100
    until(lambda: len(publisher.numbers()) > enough, timeout=300)
    publisher.stop()
    subscriber.stop()


def _account(tmp_path: Path, publisher: Machine, subscriber: Machine, *, doubles: bool) -> None:
    handled, accepted = Counter(subscriber.numbers()), set(publisher.numbers())
    assert len(accepted) > 100
    assert accepted <= handled.keys()
    assert handled.keys() <= set(range(int((tmp_path / "publisher.begun").read_text())))
    if not doubles:
        assert set(handled.values()) == {1}
    assert stored(tmp_path / "a", Store.counts).outgoing == 0
    assert stored(tmp_path / "b", Store.counts)[2:] == (0, 0, 0)


def test_files_that_cannot_grow_refuse_a_publish_and_lose_nothing(tmp_path: Path) -> None:
    """A limit of the system instead of a full disk: SQLite gets the error of a write."""
    publisher, _ = _pair(tmp_path)
    arguments = [publisher.role, str(publisher.datadir), publisher.bind, str(publisher.told), "limit:1000000"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.outbox.machine", *arguments],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert b"DiskFull" in done.stderr
    accepted = publisher.numbers()
    assert len(accepted) > 100
    found = {*texts(stored(publisher.datadir, outgoing))}
    assert found >= {body_of(number) for number in accepted}

    async def publish_again() -> None:
        async with outbox(publisher.datadir, publisher.bind) as again:
            await again.publish(KEY, "there is room again")

    asyncio.run(publish_again())


def test_a_small_disk_that_is_full_refuses_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    """On a tmpfs of 3 MiB, in a mount namespace of its own: it ends with the process."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec"]
    script = 'mount -t tmpfs -o size=3m tmpfs "$1"; test "$#" = 1 || exec "$2" -m tests.outbox.small_disk "$1" "$3"'
    try:
        subprocess.run([*mount, script, "sh", str(disk)], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no tmpfs can be mounted without root: {error}")
    done = subprocess.run(
        [*mount, script, "sh", str(disk), sys.executable, str(tmp_path / "peer")],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=300,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["accepted"] > 100
    assert found["refused"] > 0
    assert found["lost"] == found["doubled"] == []
    assert found["resumed"]
    assert found["left"] == 0
