"""An importer in this process, and a worker that a test steers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from common.connections import Connections
from common.context import Context
from common.durability import Durability
from common.http.access import Access
from common.http.json import loads
from common.logs import logger
from penstock.base.exact_json import as_json
from penstock.base.keys import Keys
from penstock.core.link import Outage
from services.himporter.service import Importer
from services.himporter.settings import Settings
from tests.http.clients import Client
from tests.support.harness import eventually

NAMESPACE, OUT = "web", "web:requests"
KEYS = Keys(NAMESPACE)


@dataclass
class Importing:
    importer: Importer
    redis: "Redis"
    context: Context[Settings]
    taken: list[dict[str, Any]] = field(default_factory=list)

    @property
    def bridge(self) -> Any:
        """Return the bridge of the run."""
        return self.importer._bridge

    def connect(self) -> Client:
        return Client(self.importer.port)

    async def request(self) -> dict[str, Any]:
        """Take the oldest request from the list."""
        async with asyncio.timeout(30):
            taken: Any = await self.redis.rpop(OUT)
            while taken is None:
                await asyncio.sleep(0.005)
                taken = await self.redis.rpop(OUT)
        message: dict[str, Any] = loads(taken)
        return message

    async def answer(self, request: dict[str, Any], status: int = 200, **more: Any) -> None:
        """Push an answer as a worker does."""
        answer = {"id": request["id"], "status": status, "headers": [], **more}
        await self.redis.lpush(request["replyTo"], as_json(answer))

    def count(self, name: str) -> int:
        """Return a counter, whether it was written or not."""
        access = self.importer.access
        assert isinstance(access, _AccessOfAll)
        return access.counters[name] + access.written[name]


class _AccessOfAll(Access):
    """Keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = Counter[str]()

    def take(self) -> tuple[Counter[str], float]:
        counters, slowest = super().take()
        self.written.update(counters)
        return counters, slowest

    def put_back(self, counters: Counter[str], slowest: float) -> None:
        self.written.subtract(counters)
        super().put_back(counters, slowest)


@asynccontextmanager
async def importing(redis: "Redis", url: str, id: str = "1", **settings: Any) -> AsyncIterator[Importing]:
    """Yield an importer that has registered as ``id`` and accepts requests."""
    given: dict[str, Any] = {
        "redis_namespace": NAMESPACE,
        "out": OUT,
        "listen_port": 0,
        "stop_timeout": 5,
        "prefer": True,
    }
    chosen = Settings(redis=url, **(given | settings))
    connections = Connections(chosen, "test")
    log = logger(dict)
    context: Context[Settings] = Context(
        chosen, connections.redis, connections.new_raw, log, Outage(log), Durability("memory", 5), keys=KEYS, id=id
    )
    importer = Importer()
    importer.access = _AccessOfAll()
    try:
        async with importer.lifespan(chosen):
            importing = Importing(importer, redis, context)
            running = asyncio.create_task(_run(importer, context))
            await eventually(lambda: importing.bridge.is_open)
            try:
                yield importing
            finally:
                context.stop()
                await running
    finally:
        if importer.socket:
            importer.socket.close()
        await connections.close()


async def _run(importer: Importer, context: Context[Settings]) -> None:
    """Run, and run again after trouble, as the supervisor does."""
    while context.running:
        with suppress(Exception):
            await importer.run(context)
        await asyncio.sleep(0.02)


async def serve(importing: Importing, **answer: Any) -> None:
    """Work until cancelled: answer every request with its path."""
    while True:
        request = await importing.request()
        await importing.answer(request, **{"body": request["path"], **answer})
