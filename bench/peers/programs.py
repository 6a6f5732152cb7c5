"""Starters for the drivers of peers, from the arguments in the catalog."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Final

from bench.peers.brokers import StartServer
from bench.peers.peer_run import Measure, PeerRun

DRIVERS: Final = Path(__file__).parent / "drivers"
Arguments = tuple[str, ...]
"""Arguments after ``python -m`` or ``node``; ``{url}`` stands for the server's URL."""


def module(name: str) -> str:
    """Return the module of a driver in Python."""
    return f"bench.peers.drivers.{name}"


def script(name: str) -> str:
    """Return the path of a driver in JavaScript."""
    return str(DRIVERS / name)


@dataclass(frozen=True)
class Producing:
    """Programs that pass messages through a peer; the one that sees a message arrive writes a mark."""

    start_server: StartServer
    producer: Arguments
    workers: tuple[Arguments, ...] = ()

    @contextmanager
    def __call__(self, run: PeerRun) -> Iterator[Measure]:
        url = self.start_server(run)
        for worker in self.workers:
            _start(run, url, worker)
        yield run.throughput(_start(run, url, self.producer))

    @property
    def programs(self) -> tuple[Arguments, ...]:
        return (self.producer, *self.workers)


@dataclass(frozen=True)
class Asking:
    """Programs that send requests through a peer and answer them."""

    start_server: StartServer
    client: Arguments
    worker: Arguments

    @contextmanager
    def __call__(self, run: PeerRun) -> Iterator[Measure]:
        url = self.start_server(run)
        _start(run, url, self.worker)
        yield run.latency(_start(run, url, self.client, piped=True))

    @property
    def programs(self) -> tuple[Arguments, ...]:
        return (self.client, self.worker)


def _start(run: PeerRun, url: str, arguments: Arguments, *, piped: bool = False) -> Popen[str]:
    assert run.installed is not None
    filled = (word.format(url=url) for word in arguments)
    environment = {**run.installed.environment, "BENCH_URL": url}
    return run.start(*run.installed.command, *filled, environment=environment, piped=piped)
