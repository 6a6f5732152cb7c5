"""How the drivers of peers are started, from the words of the catalog."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Final

from bench.peers.brokers import Serve
from bench.peers.scene import Scene, Take

DRIVERS: Final = Path(__file__).parent / "drivers"
Words = tuple[str, ...]
"""What follows ``python -m`` or ``node``; ``{url}`` is the server's."""


def module(name: str) -> str:
    """A driver in Python."""
    return f"bench.peers.drivers.{name}"


def script(name: str) -> str:
    """A driver in JavaScript."""
    return str(DRIVERS / name)


@dataclass(frozen=True)
class Driven:
    """Messages through a peer; whoever knows that one has come through writes a mark."""

    serve: Serve
    producer: Words
    workers: tuple[Words, ...] = ()

    @contextmanager
    def __call__(self, scene: Scene) -> Iterator[Take]:
        url = self.serve(scene)
        for worker in self.workers:
            _start(scene, url, worker)
        yield scene.flow(_start(scene, url, self.producer))

    @property
    def programs(self) -> tuple[Words, ...]:
        return (self.producer, *self.workers)


@dataclass(frozen=True)
class Asked:
    """Requests and answers through a peer."""

    serve: Serve
    client: Words
    worker: Words

    @contextmanager
    def __call__(self, scene: Scene) -> Iterator[Take]:
        url = self.serve(scene)
        _start(scene, url, self.worker)
        yield scene.answers(_start(scene, url, self.client, speaks=True))

    @property
    def programs(self) -> tuple[Words, ...]:
        return (self.client, self.worker)


def _start(scene: Scene, url: str, words: Words, *, speaks: bool = False) -> Popen[str]:
    assert scene.installed is not None
    filled = (word.format(url=url) for word in words)
    environment = {**scene.installed.environment, "BENCH_URL": url}
    return scene.start(*scene.installed.command, *filled, environment=environment, speaks=speaks)
