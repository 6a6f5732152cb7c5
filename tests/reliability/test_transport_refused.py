"""Tests of a target that refuses batches: vpush waits, logs the reason once, and resumes by itself."""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.fleet import Publisher, assert_registry_clean
from tests.reliability.two_servers import TwoServers, assert_once_in_order, numbered
from tests.support.harness import until

USER, PASSWORD, OUT = "vpush", "secret", "there:out"
Change = Callable[[Any], object]


@dataclass(frozen=True)
class Refusal:
    """A change that makes a server refuse, the pattern of its error, and the change that ends it."""

    name: str
    begin: Change
    error: str
    end: Change


def put_aside(there: Any) -> None:
    """Replace the list by a key of another type."""
    there.pipeline().rename(OUT, "aside").set(OUT, "a string").execute()


def put_back(there: Any) -> None:
    there.pipeline().delete(OUT).rename("aside", OUT).execute()


REFUSALS = [
    Refusal("wrong type", put_aside, "expected a list", put_back),
    Refusal(
        "no memory left",
        lambda there: there.config_set("maxmemory", 1),
        "maxmemory",
        lambda there: there.config_set("maxmemory", 0),
    ),
    Refusal(
        "read-only",
        lambda there: there.replicaof("127.0.0.1", "1"),
        "read only",
        lambda there: there.replicaof("NO", "ONE"),
    ),
    Refusal(
        "may not push",
        lambda there: there.execute_command("ACL", "SETUSER", USER, "-lpush"),
        r"lacks rights: \+lpush|ermission|: The user executing the script can't run",
        lambda there: there.execute_command("ACL", "SETUSER", USER, "+lpush"),
    ),
    Refusal(
        "may not run scripts",
        lambda there: there.execute_command("ACL", "SETUSER", USER, "-@scripting"),
        r"lacks rights: \+eval \+evalsha|ermission",
        lambda there: there.execute_command("ACL", "SETUSER", USER, "+@scripting"),
    ),
]


@pytest.fixture
def fleet(fork_server: ForkServer, tmp_path: Path) -> Iterator[TwoServers]:
    """Return a fleet whose replicas log in to the target as ``USER``, with the permissions they need."""
    with EmbeddedServer() as here, EmbeddedServer() as there:
        with Redis.from_url(there.url) as redis:
            redis.execute_command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", f"~{OUT}*", "+@all")
        url = there.url.replace("//", f"//{USER}:{PASSWORD}@")
        with TwoServers(here.url, there.url, fork_server, tmp_path, {"out_redis": url}) as started:
            yield started


def attempts(fleet: TwoServers) -> int:
    """Return the number of batches and handshakes that the target executed or refused."""
    stats = fleet.there.info("commandstats")
    names = ("cmdstat_evalsha", "cmdstat_eval")
    return sum(stats[name]["calls"] + stats[name].get("rejected_calls", 0) for name in names if name in stats)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_a_target_that_refuses_under_load_is_waited_for(
    fleet: TwoServers, rng: random.Random, refusal: Refusal
) -> None:
    """Three times, so that a reason logged once is logged again when the refusal starts again."""
    fleet.up()
    with Publisher(fleet, rng) as publisher:
        for _ in range(3):
            fleet.until_more_arrives()
            refuse_for_a_while(fleet, refusal)
    fleet.wait_until_settled()
    fleet.stop()
    assert_once_in_order(fleet, publisher.accepted)
    assert_registry_clean(fleet)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_a_target_that_refuses_from_the_start_is_waited_for(fleet: TwoServers, refusal: Refusal) -> None:
    messages = numbered(100)
    fleet.push(messages)
    fleet.there.lpush(OUT, "of somebody else")
    refuse_for_a_while(fleet, refusal, fleet.up)
    fleet.there.rpop(OUT)
    fleet.wait_until_settled()
    fleet.stop()
    assert_once_in_order(fleet, messages)


def refuse_for_a_while(fleet: TwoServers, refusal: Refusal, meanwhile: Callable[[], object] = lambda: None) -> None:
    """Begin and end a refusal; assert that the replica retried, and logged each reason and the end once."""
    begun, resumed = len(reasons(fleet)), fleet.count_logged("resumed")
    refusal.begin(fleet.there)
    meanwhile()
    until(lambda: len(reasons(fleet)) > begun)
    before = attempts(fleet)
    until(lambda: attempts(fleet) >= before + 6)
    refusal.end(fleet.there)
    until(lambda: fleet.count_logged("resumed") > resumed)
    assert fleet.count_logged("resumed") == resumed + 1
    logged = [reason.rstrip(".0123456789") for reason in reasons(fleet)[begun:]]
    assert len(logged) == len(set(logged))
    assert all(line.startswith("the other server: ") and re.search(refusal.error, line) for line in logged), logged


def reasons(fleet: TwoServers) -> list[str]:
    """Return the reasons for waiting that all replicas have logged."""
    lines = [json.loads(line) for replica in fleet.replicas for line in replica.log_text().splitlines()]
    return [line["reason"] for line in lines if line["event"] == "waiting"]


def test_script_flush_on_either_server_under_load_loses_and_doubles_nothing(
    fleet: TwoServers, rng: random.Random
) -> None:
    fleet.up()
    with Publisher(fleet, rng) as publisher:
        for _ in range(100):
            time.sleep(rng.uniform(0, 0.03))  # a random time for the flush, not a wait
            rng.choice([fleet.there, fleet.there, fleet.redis]).script_flush()
        fleet.until_more_arrives()
    fleet.wait_until_settled()
    fleet.stop()
    assert fleet.count_logged("resumed") == fleet.count_logged("waiting") > 0
    assert_once_in_order(fleet, publisher.accepted)
    assert_registry_clean(fleet)
