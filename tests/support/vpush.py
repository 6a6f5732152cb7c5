"""vpush for tests: its settings, and as processes between two servers."""

import asyncio
import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from redis import Redis

from penstock.accounting.audit import audit
from penstock.base.keys import Keys
from penstock.core.connection import connect
from penstock.testing.server import EmbeddedServer
from services.vpush.settings import Settings
from tests.support.harness import Service, until

KEYS = Keys("demo")

HERE, THERE = "redis://here", "redis://there"
LEAST: dict[str, Any] = {
    "redis": HERE,
    "redis_namespace": "demo",
    "in_": "in",
    "pending": "pending",
    "out_redis": THERE,
    "out": "out",
}


def made(**more: Any) -> Settings:
    return Settings(**{**LEAST, **more})


class Line:
    """``in`` on one server, ``out`` on the other, and vpush replicas between them."""

    def __init__(self, here: EmbeddedServer, there: EmbeddedServer, directory: Path, ends: ExitStack) -> None:
        self.here: Any = ends.enter_context(Redis.from_url(here.url))
        self.there: Any = ends.enter_context(Redis.from_url(there.url))
        self._directory, self._ends = directory, ends
        self._settings: dict[str, Any] = {
            "redis": here.url,
            "redis_namespace": KEYS.namespace,
            "in_": "in",
            "pending": "pending",
            "out_redis": there.url,
            "out": "out",
            "pop_timeout": 5,
            "link_timeout": 2,
        }
        self.started = 0

    def up(self, **settings: Any) -> Service:
        """Start one more replica; return it, possibly before it has registered."""
        self.started += 1
        log = self._directory / f"{self.started}.log"
        return self._ends.enter_context(Service("vpush", log, **{**self._settings, **settings}))

    def push(self, messages: Iterable[bytes]) -> None:
        self.here.lpush("in", *messages)

    def arrived(self, out: str = "out") -> list[bytes]:
        """Return the messages in ``out``, oldest first."""
        found: list[bytes] = self.there.lrange(out, 0, -1)
        return found[::-1]

    def settled(self) -> bool:
        return not self.here.exists("in", "pending")

    def until_arrived(self, messages: list[bytes]) -> None:
        """Wait until ``messages`` have arrived, once and in order; check the counters and the audit."""
        until(lambda: self.there.llen("out") >= len(messages) and self.settled(), 60)
        assert self.arrived() == messages
        assert self.count("taken") == self.count("delivered") == len(messages)
        assert self.problems() == []

    def count(self, metric: str, field: str = "count") -> int:
        return int(self.here.hget(KEYS.metric(metric), field) or 0)

    def problems(self) -> list[str]:
        """Return the problems that ``penstock audit`` finds."""

        async def found() -> list[str]:
            url = str(self._settings["redis"])
            async with connect(url) as redis:
                result = await audit(redis, KEYS)
                assert result
                return result.problems

        return asyncio.run(found())


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(first, first + count)]


def logged(service: Service, event: str) -> list[dict[str, Any]]:
    spoken = (json.loads(line) for line in service.log_text().splitlines() if line.startswith('{"'))
    return [line for line in spoken if line["event"] == event]
