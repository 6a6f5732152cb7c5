"""Tests of large messages to another server: they arrive in any mixture, and block neither server nor lease."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.reliability.two_servers import TwoServers
from tests.support.commandline import penstock
from tests.support.harness import until

KIB, MB = 1_024, 1_000_000
MIXTURES = {
    "100 KB": [100_000] * 300,
    "1 MB": [MB] * 200,
    "5 MB after 1 KiB": [KIB] * 3_000 + [5 * MB] * 20,
    "each after another": [KIB, 5 * MB, 100_000, MB] * 25,
}
# The whole takes a second on a quiet machine, and six where four tests share two cores: a lease of one second is lost
# there by the machine's fault.
PATIENT = {"batch": 5_000, "window": 200, "link_timeout": 10, "lease_expire": 3}
Servers = tuple[EmbeddedServer, EmbeddedServer]


@pytest.fixture
def servers() -> Iterator[Servers]:
    with EmbeddedServer() as here, EmbeddedServer() as there:
        yield here, there


@pytest.fixture(params=MIXTURES)
def sizes(request: pytest.FixtureRequest) -> list[int]:
    return MIXTURES[request.param]


def push(redis: Any, name: str, sizes: list[int]) -> None:
    for number, size in enumerate(sizes):
        redis.lpush(name, message(number, size))


def message(number: int, size: int) -> bytes:
    return b"%09d" % number + b"\xa5" * (size - 9)


def assert_there(redis: Any, out: str, sizes: list[int]) -> None:
    """Assert that all messages arrived, once and in order."""
    assert redis.llen(out) == len(sizes)
    for number, size in enumerate(sizes):
        assert redis.lindex(out, -1 - number) == message(number, size), f"message {number}"


def test_vpush_moves_them_all_without_losing_its_lease(
    servers: Servers, fork_server: ForkServer, tmp_path: Path, sizes: list[int]
) -> None:
    here, there = (server.url for server in servers)
    with TwoServers(here, there, fork_server, tmp_path, PATIENT) as fleet:
        push(fleet.redis, fleet.service.source, sizes)
        fleet.up()
        until(lambda: fleet.is_settled() and fleet.there.llen(fleet.service.out) >= len(sizes), 60)
        fleet.stop()
        assert_there(fleet.there, fleet.service.out, sizes)
        assert fleet.count_logged("lease lost") == 0
        assert fleet.redis.hget(fleet.keys.lease, "token") == b"1"


@pytest.mark.parametrize("small", [5_000, 5_001])
def test_large_ones_at_regular_distances_are_not_overlooked(
    servers: Servers, fork_server: ForkServer, tmp_path: Path, small: int
) -> None:
    """Sampling every tenth message, for example, would find only small ones, and then read all at once."""
    sizes = [20] * small + [300_000, 20] * 400
    here, there = (server.url for server in servers)
    with TwoServers(here, there, fork_server, tmp_path, {"batch": 5_000, "window": 200}) as fleet:
        push(fleet.redis, fleet.service.source, sizes)
        replica = fleet.up()
        until(lambda: fleet.is_settled() and fleet.there.llen(fleet.service.out) >= len(sizes), 60)
        (peak,) = re.findall(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{replica.pid}/status").read_text())
        assert int(peak) < 120_000, "of 120 MB that waited not all was in hand at once"
        fleet.stop()
        assert_there(fleet.there, fleet.service.out, sizes)


@pytest.mark.parametrize("copies", [[], ["--copy"]], ids=["move", "copy"])
async def test_shovel_moves_them_all(servers: Servers, sizes: list[int], copies: list[str]) -> None:
    here, there = (Redis.from_url(server.url) for server in servers)
    with here, there:
        push(here, "in", sizes)
        result = await penstock("shovel", servers[0].url, "in", servers[1].url, "out", *copies)
        assert (result.status, result.error) == (0, "")
        assert_there(there, "out", sizes)
        assert here.llen("in") == (len(sizes) if copies else 0)
