"""outbox as a process at a site with lists of its own."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from redis import Redis

from penstock.accounting.audit import audit
from penstock.base.keys import Keys
from penstock.base.ports import free_port
from penstock.core.connection import connect
from penstock.outbox.store import Store
from tests.support.harness import Service, until


class Place:
    """A site: its lists are ``<name>:in`` and ``<name>:out`` on a server, its key is its name."""

    def __init__(self, name: str, url: str, directory: Path, ends: ExitStack) -> None:
        self.keys, self.url = Keys(name), url
        self.client: Any = ends.enter_context(Redis.from_url(url))
        self.address = f"127.0.0.1:{free_port()}"
        self.datadir = directory / name
        self._log, self._ends = directory / f"{name}.log", ends
        self.settings: dict[str, Any] = {
            "redis": url,
            "redis_namespace": name,
            "datadir": self.datadir,
            "bind": self.address,
            "in_": f"{name}:in",
            "pending": f"{name}:pending",
            "publish": name,
            "out": f"{name}:out",
            "pop_timeout": 5,
        }

    def up(self, **settings: Any) -> Service:
        """Start the service; return it, possibly before it has registered."""
        given = {name: value for name, value in {**self.settings, **settings}.items() if value is not None}
        return self._ends.enter_context(Service("outbox", self._log, **given))

    def push(self, *messages: bytes) -> None:
        self.client.lpush(f"{self.keys.namespace}:in", *messages)

    def arrived(self) -> list[bytes]:
        """Return the messages in ``out``, oldest first."""
        found: list[bytes] = self.client.lrange(f"{self.keys.namespace}:out", 0, -1)
        return found[::-1]

    def has(self, messages: int) -> bool:
        return len(self.arrived()) >= messages

    def settled(self) -> bool:
        return not self.client.exists(f"{self.keys.namespace}:in", f"{self.keys.namespace}:pending")

    def count(self, metric: str, field: str = "count") -> int:
        return int(self.client.hget(self.keys.metric(metric), field) or 0)

    def stored(self, what: str) -> int:
        """Return how much the outbox has of what ``Counts`` counts."""
        store = Store.read(self.datadir)
        try:
            return int(getattr(store.counts(), what))
        finally:
            store.close()

    def until_subscribed(self, keys: int = 1) -> None:
        """Wait until it has registered, and others are subscribed to this many of its keys."""
        until(lambda: self.client.hget(self.keys.metric("outbox"), "keys") == b"%d" % keys)

    async def problems(self) -> list[str]:
        """Return the problems that ``penstock audit`` finds."""
        async with connect(self.url) as redis:
            found = await audit(redis, self.keys)
        assert found is not None
        return found.problems
