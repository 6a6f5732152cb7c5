"""Fixtures for the reliability suite: fork server, random numbers, services and fleets."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.fleet import Balancing, Deduplicating, Dispatching, Fleet, Limiting, QueueService, Routing
from tests.reliability.replica import Replica

SERVICES = [QueueService("mpush"), Dispatching(), Routing(), Deduplicating(), Limiting(), Balancing()]
"""The services with which the suite is run."""

Launch = Callable[..., Fleet]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    names = ("mpush", "mdispatch", "hrouter", "mdedupe", "mbalance", "mlimit", "monitor", "vpush")
    modules = [f"services.{name}.service" for name in names]
    with ForkServer("common.app", "redis", "penstock.bus", *modules) as started:
        yield started


@pytest.fixture
def rng() -> random.Random:
    """Return a generator with the seed RELIABILITY_SEED, or a random one, which a failed test shows."""
    seed = int(os.environ.get("RELIABILITY_SEED") or random.SystemRandom().getrandbits(32))
    print(f"RELIABILITY_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(params=SERVICES, ids=lambda service: service.name)
def service(request: pytest.FixtureRequest) -> QueueService:
    given: QueueService = request.param
    return given


@pytest.fixture
def launch(service: QueueService, fork_server: ForkServer, tmp_path: Path) -> Iterator[Launch]:
    """Yield ``launch(server, **settings)``, which returns a fleet of the service on that server."""
    with ExitStack() as ends:

        def launch(server: EmbeddedServer, service: QueueService = service, **settings: Any) -> Fleet:
            return ends.enter_context(Fleet(service, server.url, fork_server, tmp_path, settings))

        yield launch


@pytest.fixture
def fleet(launch: Launch, server: EmbeddedServer) -> Fleet:
    """Return a fleet on the shared server, which no test breaks; empty the server first."""
    fleet = launch(server)
    fleet.redis.flushall()
    return fleet


@dataclass(frozen=True)
class Suspended:
    """A replica suspended by SIGSTOP since the suite began, and another one that works."""

    fleet: Fleet
    replica: Replica
    other: Replica
    id: str
    messages: list[bytes]
    """All messages pushed; the suspended replica has taken the first one."""


@pytest.fixture(scope="session", autouse=True)
def suspensions(
    request: pytest.FixtureRequest, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Suspended]]:
    """Yield one for each service, made early: its registration takes 30 s to expire, while other tests run."""
    wanted = any("suspended" in getattr(item, "fixturenames", ()) for item in request.session.items)
    with ExitStack() as ends:
        yield {service.name: suspend(ends, service, fork_server, tmp_path_factory) for service in SERVICES if wanted}


def suspend(
    ends: ExitStack, service: QueueService, fork_server: ForkServer, directories: pytest.TempPathFactory
) -> Suspended:
    server = ends.enter_context(EmbeddedServer())
    fleet = ends.enter_context(Fleet(service, server.url, fork_server, directories.mktemp("suspended"), {}))
    replica = fleet.up()
    fleet.waiting()
    replica.signal(signal.SIGSTOP)
    messages = [b"message %d" % number for number in range(1_000)]
    fleet.push_to_suspended(messages[:1])
    other = fleet.up()
    fleet.push(messages[1:])
    return Suspended(fleet, replica, other, fleet.ids()[-1], messages)


@pytest.fixture
def suspended(suspensions: dict[str, Suspended], service: QueueService) -> Suspended:
    return suspensions[service.name]
