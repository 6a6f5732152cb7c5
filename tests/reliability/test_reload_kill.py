"""Tests of reloads with messages in hand while replicas die: nothing is lost or doubled."""

import random
import signal
import time
from collections import Counter
from itertools import count
from pathlib import Path

import pytest
import yaml

from tests.reliability.fleet import Fleet, Publisher, assert_accounted, assert_registry_clean
from tests.reliability.replica import Replica
from tests.support.harness import rounds, until

PREFIX = "work:pending"
"""Prefix of the names of all pending lists."""


class Reloading:
    """Two replicas of ``fleet`` that read the name of their pending list and their batch size from one props file."""

    def __init__(self, fleet: Fleet, props: Path, rng: random.Random) -> None:
        self.fleet, self._props, self._rng = fleet, props, rng
        self._names = count()
        self.write()
        self.replicas = [self._start(), self._start()]

    def _start(self) -> Replica:
        return self.fleet.start(pending="")  # as in the props file

    def write(self) -> None:
        """Write settings never used before; replace the file atomically."""
        new_file = self._props.with_suffix(".new.yaml")
        settings = {"pending": f"{PREFIX}{next(self._names)}", "batch": self._rng.choice([1, 7, 500])}
        new_file.write_text(yaml.safe_dump(settings))
        new_file.replace(self._props)

    def reload(self) -> None:
        """Write new settings and send SIGHUP to the replicas that handle signals already."""
        self.write()
        for replica in self.replicas:
            if replica.listens:
                replica.signal(signal.SIGHUP)

    def kill_one(self) -> str | None:
        """Kill a random replica and start another; return the id of the killed one."""
        which = self._rng.randrange(2)
        self.replicas[which].kill()
        id = self.fleet.id_of(self.replicas[which])
        self.fleet.forget(self.replicas[which])
        self.replicas[which] = self._start()
        return id

    def held(self) -> dict[str, int]:
        """Return the lengths of all pending lists that are not empty."""
        redis = self.fleet.redis
        names = [name.decode() for name in redis.scan_iter(f"{PREFIX}*", count=1_000, _type="list")]
        return {name: length for name in names if (length := redis.llen(name))}

    def is_settled(self) -> bool:
        return self.fleet.redis.llen(self.fleet.service.source) == 0 and not self.held()


@pytest.fixture
def reloading(fleet: Fleet, tmp_path: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> Reloading:
    props = tmp_path / "props.yaml"
    monkeypatch.setenv("PROPS_FILE", str(props))
    return Reloading(fleet, props, rng)


def test_replicas_killed_while_their_settings_change_lose_and_double_nothing(
    reloading: Reloading, rng: random.Random
) -> None:
    fleet = reloading.fleet
    killed, in_hand = set(), Counter[str]()
    rarely = fleet.service.name in ("mpush", "mlimit", "mbalance")  # in hand only during a script: see test_held.py
    with Publisher(fleet, rng) as publisher:
        for _ in rounds(lambda: in_hand or rarely):
            time.sleep(rng.uniform(0, 0.12))  # as above
            reloading.reload()
            time.sleep(rng.choice([0, rng.uniform(0, 0.02)]))
            killed.add(reloading.kill_one())
            in_hand.update(reloading.held())
    fleet.forget(*(replica for replica in fleet.replicas if not replica.running))
    until(reloading.is_settled)
    fleet.stop()
    assert_accounted(fleet, publisher.accepted)
    assert_registry_clean(fleet, killed=filter(None, killed))
    assert in_hand or rarely, "no kill met a message in hand: the test proves nothing"
