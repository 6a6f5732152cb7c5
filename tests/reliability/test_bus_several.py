"""One of three servers is down for a while: queues on the others go on, and no queue is created anywhere else."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.bus_account import Workers
from tests.support.harness import until

QUEUES = ("orders", "zoo", "foo")
"""By the place of their server among three."""
OUTAGES = 3


@pytest.fixture
def servers() -> Iterator[list[EmbeddedServer]]:
    with ExitStack() as started:
        yield [started.enter_context(EmbeddedServer(aof=True)) for _ in QUEUES]


def test_queues_on_the_other_servers_go_on_and_none_is_created_elsewhere(
    servers: list[EmbeddedServer], fork_server: ForkServer, tmp_path: Path
) -> None:
    all_workers = list[Workers]()
    with ExitStack() as running:
        for name in QUEUES:
            (tmp_path / name).mkdir()
            workers = Workers(fork_server, tmp_path / name, *(each.url for each in servers), queue=name)
            for role in ("produce", "consume"):
                running.enter_context(workers.worker(role))
            all_workers.append(workers)
        for workers in all_workers:
            workers.until_handled()
        for number in range(OUTAGES):
            servers[number].kill()
            until(lambda number=number: all_workers[number].outages() > 0)  # type: ignore[misc]
            for workers in all_workers:
                if workers is not all_workers[number]:
                    workers.until_handled()
            servers[number].start()
            all_workers[number].until_handled()
    for server, workers, name in zip(servers, all_workers, QUEUES, strict=True):
        with Redis.from_url(server.url) as redis:
            workers.drained(redis).assert_reliable(workers.last_id(redis))
            assert {key.decode().split(":")[2] for key in redis.scan_iter("bus:queue:*")} == {name}
