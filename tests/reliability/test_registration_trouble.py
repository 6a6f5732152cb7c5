"""Tests that a registration that expired in trouble is renewed, while a deleted one is an order to stop."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.fleet import Dispatching, Fleet, QueueService, Watching
from tests.reliability.proxy import Proxy
from tests.reliability.replica import Replica
from tests.reliability.two_servers import Pushing, TwoServers
from tests.support.harness import until
from tests.support.servers import KINDS, started

FAN = QueueService("mpush", "fan:in", "fan:pending", ("fan:out0", "fan:out1"), namespace="fan")
LINK = Pushing(source="far:in", pending="far:pending", namespace="far")
EXPIRED_SECONDS = 33
"""Seconds after which a registration has expired without heartbeats; its TTL is at least 30."""


@dataclass
class Deployment:
    """One replica of each service on a server of their own behind a proxy, and a fault to ``begin`` and ``end``."""

    fleets: list[Fleet]
    replicas: list[Replica]
    begin: Callable[[], object]
    end: Callable[[], object]
    renews: bool = False
    """True if heartbeats succeed despite the fault."""


def deploy(
    kind: str, fault: str, other: EmbeddedServer, fork_server: ForkServer, directory: Path, stack: ExitStack
) -> Deployment:
    server = stack.enter_context(started(kind))
    proxy = stack.enter_context(Proxy(server.port))
    directory.mkdir()
    fleets: list[Fleet] = [
        stack.enter_context(Fleet(service, server.url, fork_server, directory, {}))
        for service in (FAN, Dispatching(), Watching())
    ]
    fleets.append(
        stack.enter_context(
            TwoServers(
                server.url, other.url, fork_server, directory, service=replace(LINK, outs=(f"{directory.name}:out",))
            )
        )
    )
    deployment = Deployment(fleets, [fleet.up(redis=proxy.url) for fleet in fleets], lambda: None, lambda: None)
    redis = fleets[0].redis

    def signal_all(number: int) -> Callable[[], object]:
        def send() -> None:
            for replica in deployment.replicas:
                replica.signal(number)

        return send

    def hold(reply: bytes) -> Callable[[], object]:
        return lambda: setattr(proxy, "canned_reply", reply)

    deployment.begin, deployment.end = {
        "full": (lambda: redis.config_set("maxmemory", 1), lambda: redis.config_set("maxmemory", 0)),
        "read-only": (lambda: redis.replicaof("127.0.0.1", "1"), lambda: redis.replicaof("NO", "ONE")),
        "no replicas": (
            lambda: redis.config_set("min-replicas-to-write", 1),
            lambda: redis.config_set("min-replicas-to-write", 0),
        ),
        "suspended": (signal_all(signal.SIGSTOP), signal_all(signal.SIGCONT)),
        "cut": (hold(b"-ERR upstream not ready\r\n"), hold(b"")),
    }[fault]
    deployment.renews = fault == "full"
    return deployment


def deploy_all(
    other: EmbeddedServer, fork_server: ForkServer, directory: Path, stack: ExitStack
) -> Iterator[Deployment]:
    for kind in KINDS:
        yield deploy(kind, "full", other, fork_server, directory / f"full-{kind}", stack)
    for fault in ("read-only", "no replicas", "suspended", "cut"):
        yield deploy("embedded", fault, other, fork_server, directory / fault.replace(" ", "-"), stack)


def test_an_expired_registration_is_renewed_after_an_outage_and_a_deletion_is_obeyed(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    with EmbeddedServer() as other, ExitStack() as stack:
        deployments = list(deploy_all(other, fork_server, tmp_path, stack))
        for each in deployments:
            each.begin()
        time.sleep(EXPIRED_SECONDS)
        for each in deployments:
            for fleet, replica in zip(each.fleets, each.replicas, strict=True):
                assert replica.running
                assert bool(fleet.id_of(replica)) == each.renews, replica.log_text()
            each.end()
        for each in deployments:
            for fleet, replica in zip(each.fleets, each.replicas, strict=True):
                until(lambda fleet=fleet, replica=replica: fleet.id_of(replica))  # type: ignore[misc]
                assert replica.running
                assert "registration deleted" not in replica.log_text()
        for each in deployments:
            if each.renews:
                each.begin()  # the order must be obeyed on a full server, too
            for fleet, replica in zip(each.fleets, each.replicas, strict=True):
                fleet.forget(replica)
                assert replica.wait() == 0
                assert "registration deleted: stopping" in replica.log_text()
