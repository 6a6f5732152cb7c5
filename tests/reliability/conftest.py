"""Servers, replicas and chance for the reliability suite."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.server import EmbeddedServer
from tests.reliability.forkserver import ForkServer, Replica
from tests.reliability.stage import Dispatching, QueueService, Stage

SERVICES = [QueueService("mpush"), Dispatching()]
"""All that the suite is run against."""

Staged = Callable[..., Stage]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    modules = [f"services.{name}.service" for name in ("mpush", "mdispatch", "monitor", "vpush")]
    with ForkServer("common.app", "redis", *modules) as started:
        yield started


@pytest.fixture
def rng() -> random.Random:
    """Chance, the same again with RELIABILITY_SEED; the seed is among what a failed test printed."""
    seed = int(os.environ.get("RELIABILITY_SEED") or random.SystemRandom().getrandbits(32))
    print(f"RELIABILITY_SEED={seed}")
    return random.Random(seed)


@pytest.fixture(params=SERVICES, ids=lambda service: service.name)
def service(request: pytest.FixtureRequest) -> QueueService:
    given: QueueService = request.param
    return given


@pytest.fixture
def staged(service: QueueService, fork_server: ForkServer, tmp_path: Path) -> Iterator[Staged]:
    """``staged(server, **settings)``: the service on a server of the test's own."""
    with ExitStack() as ends:

        def staged(server: EmbeddedServer, service: QueueService = service, **settings: Any) -> Stage:
            return ends.enter_context(Stage(service, server.url, fork_server, tmp_path, settings))

        yield staged


@pytest.fixture
def stage(staged: Staged, server: EmbeddedServer) -> Stage:
    """The service on the server that no test breaks, with nothing in it."""
    stage = staged(server)
    stage.redis.flushall()
    return stage


@dataclass(frozen=True)
class Suspended:
    """A replica that SIGSTOP holds since the suite began, beside another one that works."""

    stage: Stage
    replica: Replica
    other: Replica
    id: str
    messages: list[bytes]
    """All that was pushed; the suspended one has taken the first of them."""


@pytest.fixture(scope="session", autouse=True)
def suspensions(
    request: pytest.FixtureRequest, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Suspended]]:
    """One of each service, made early, since a registration lives 30 s: the other tests pass the time."""
    wanted = any("suspended" in getattr(item, "fixturenames", ()) for item in request.session.items)
    with ExitStack() as ends:
        yield {service.name: suspend(ends, service, fork_server, tmp_path_factory) for service in SERVICES if wanted}


def suspend(
    ends: ExitStack, service: QueueService, fork_server: ForkServer, directories: pytest.TempPathFactory
) -> Suspended:
    server = ends.enter_context(EmbeddedServer())
    stage = ends.enter_context(Stage(service, server.url, fork_server, directories.mktemp("suspended"), {}))
    replica = stage.up()
    stage.waiting()
    replica.signal(signal.SIGSTOP)
    messages = [b"message %d" % number for number in range(1_000)]
    stage.push_to_suspended(messages[:1])
    other = stage.up()
    stage.push(messages[1:])
    return Suspended(stage, replica, other, stage.ids()[-1], messages)


@pytest.fixture
def suspended(suspensions: dict[str, Suspended], service: QueueService) -> Suspended:
    return suspensions[service.name]
