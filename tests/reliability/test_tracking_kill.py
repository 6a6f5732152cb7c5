"""Tests of mdispatch, monitors and workers killed at any time: every request ends once, and all records agree."""

import asyncio
import random
import time
from collections import Counter

import pytest

from penstock.testing.server import EmbeddedServer
from tests.reliability.accounts import Records, assert_all_ended
from tests.reliability.conftest import Launch
from tests.reliability.fleet import Dispatching, QueueService, audited
from tests.reliability.jobs import WEIGHTS
from tests.reliability.tracked_line import Line, Load
from tests.support.harness import rounds

MIN_REQUESTS = 6_000
"""Requests after which every kind has occurred in every state."""
MAX_INTERVAL = 0.3
"""Seconds between two kills, at most; a service is at work within about a third of that."""


@pytest.fixture
def service() -> QueueService:
    return Dispatching()


def test_any_of_two_mdispatch_three_monitors_and_two_workers_killed_again_and_again_under_load_end_every_request_once(
    launch: Launch, rng: random.Random
) -> None:
    in_hand: Counter[str] = Counter()
    with EmbeddedServer() as server:
        line = Line(launch, server, mdispatch=2, monitors=3, workers=2)
        with Load(line, rng, rate=250) as load:
            for number in rounds(lambda: len(load.accepted) > MIN_REQUESTS and len(+in_hand) == 3):
                time.sleep(rng.uniform(0, MAX_INTERVAL))  # a random time for the kill, not a wait
                victim = rng.choice(line.members)
                if rng.random() < 0.5:
                    victim.wait_until_busy()
                in_hand[victim.name] += victim.kill()
                victim.start()
                if number % 20 == 0:
                    assert asyncio.run(audited(line.dispatching)) == []
        line.end()
        records = assert_all_ended(line, load.accepted)
        print(f"{len(load.accepted)} requests; kills that met something in hand: {dict(in_hand)}")
        assert not load.unsure
        assert_every_kind_was_met(records)
    assert in_hand.keys() == {"mdispatch", "monitor", "worker"}
    assert all(in_hand.values()), "no kill met something in hand: the test proves nothing"


def assert_every_kind_was_met(records: Records) -> None:
    ends = Counter((records.jobs[event.xid].kind, event.event) for event in records.named("done", "late", "dead"))
    print({f"{kind} {end}": count for (kind, end), count in sorted(ends.items())})
    usual = {"late": "late", **dict.fromkeys(("silent", "failing", "final", "posthumous"), "dead")}
    assert all(ends[kind, usual.get(kind, "done")] for kind in WEIGHTS)
    assert any(job.delay for job in records.accepted)
    assert any(job.reply_to for job in records.accepted)
    seen = Counter(event.event for event in records.events)
    assert all(seen[name] for name in ("delayed", "delivered", "timeout", "failed", "retry", "touched", "late"))
    late = records.line.dispatching.metric("done:late")
    assert late["count"] > late["completed"], "nobody was done with a dead one"
