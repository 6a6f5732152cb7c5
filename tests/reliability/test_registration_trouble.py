"""A registration that ran out, its renewals refused or unanswered, is made anew; one that is deleted is an order."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.harness import until
from tests.reliability.fleet import Dispatching, Fleet, QueueService, Watching
from tests.reliability.proxy import Proxy
from tests.reliability.replica import Replica
from tests.reliability.two_servers import Pushing, TwoServers
from tests.servers import KINDS, started

FAN = QueueService("mpush", "fan:in", "fan:pending", ("fan:out0", "fan:out1"), namespace="fan")
FAR = Pushing(source="far:in", pending="far:pending", namespace="far")
TOO_LONG = 33
"""Seconds after which a registration that nobody renews has run out; settings allow no less than 30."""


@dataclass
class Crew:
    """One of each service, on a server of its own behind a proxy, and what troubles it."""

    fleets: list[Fleet]
    replicas: list[Replica]
    begin: Callable[[], object]
    end: Callable[[], object]
    renews: bool = False
    """Whether renewals succeed all the same."""


def crew(
    kind: str, trouble: str, other: EmbeddedServer, fork_server: ForkServer, directory: Path, ends: ExitStack
) -> Crew:
    server = ends.enter_context(started(kind))
    proxy = ends.enter_context(Proxy(server.port))
    directory.mkdir()
    fleets: list[Fleet] = [
        ends.enter_context(Fleet(service, server.url, fork_server, directory, {}))
        for service in (FAN, Dispatching(), Watching())
    ]
    fleets.append(
        ends.enter_context(
            TwoServers(
                server.url, other.url, fork_server, directory, service=replace(FAR, outs=(f"{directory.name}:out",))
            )
        )
    )
    made = Crew(fleets, [fleet.up(redis=proxy.url) for fleet in fleets], lambda: None, lambda: None)
    redis = fleets[0].redis

    def signalled(number: int) -> Callable[[], object]:
        def send() -> None:
            for replica in made.replicas:
                replica.signal(number)

        return send

    def hold(says: bytes) -> Callable[[], object]:
        return lambda: setattr(proxy, "says", says)

    made.begin, made.end = {
        "full": (lambda: redis.config_set("maxmemory", 1), lambda: redis.config_set("maxmemory", 0)),
        "read-only": (lambda: redis.replicaof("127.0.0.1", "1"), lambda: redis.replicaof("NO", "ONE")),
        "no replicas": (
            lambda: redis.config_set("min-replicas-to-write", 1),
            lambda: redis.config_set("min-replicas-to-write", 0),
        ),
        "suspended": (signalled(signal.SIGSTOP), signalled(signal.SIGCONT)),
        "cut": (hold(b"-ERR upstream not ready\r\n"), hold(b"")),
    }[trouble]
    made.renews = trouble == "full"
    return made


def crews(other: EmbeddedServer, fork_server: ForkServer, directory: Path, ends: ExitStack) -> Iterator[Crew]:
    for kind in KINDS:
        yield crew(kind, "full", other, fork_server, directory / f"full-{kind}", ends)
    for trouble in ("read-only", "no replicas", "suspended", "cut"):
        yield crew("embedded", trouble, other, fork_server, directory / trouble.replace(" ", "-"), ends)


def test_a_registration_that_runs_out_in_trouble_is_made_anew_and_a_deletion_is_obeyed(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    with EmbeddedServer() as other, ExitStack() as ends:
        all_of_them = list(crews(other, fork_server, tmp_path, ends))
        for each in all_of_them:
            each.begin()
        time.sleep(TOO_LONG)
        for each in all_of_them:
            for fleet, replica in zip(each.fleets, each.replicas, strict=True):
                assert replica.running
                assert bool(fleet.id_of(replica)) == each.renews, replica.log_text()
            each.end()
        for each in all_of_them:
            for fleet, replica in zip(each.fleets, each.replicas, strict=True):
                until(lambda fleet=fleet, replica=replica: fleet.id_of(replica))  # type: ignore[misc]
                assert replica.running
                assert "registration deleted" not in replica.log_text()
        for each in all_of_them:
            if each.renews:
                each.begin()  # an order is obeyed while the server is full, too
            for fleet, replica in zip(each.fleets, each.replicas, strict=True):
                fleet.forget(replica)
                assert replica.wait() == 0
                assert "registration deleted: stopping" in replica.log_text()
