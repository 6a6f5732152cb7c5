"""Other sites for tests: a gateway of ours, or Node's federation server, with a bus that has no server of its own."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.bus import Bus
from penstock.bus.federation import (
    FederatedChannel,
    FederatedPersistable,
    FederatedPubSub,
    FederatedQueue,
    FederatedService,
)
from tests.bus.gateway import SECRET, serving, url_of
from tests.bus.node import node

NODE_SECRET: Final = "s3cret"


@dataclass
class Site:
    """Another site, and a bus without a server of its own."""

    url: str
    bus: Bus
    options: dict[str, Any]

    def queue(self, name: str = "foo") -> FederatedQueue:
        return self.bus.federate(self.bus.queue(name), self.url, **self.options)

    def channel(self, name: str = "zoo", *roles: str) -> FederatedChannel:
        return self.bus.federate(self.bus.channel(name, *roles), self.url, **self.options)

    def pubsub(self, name: str = "news") -> FederatedPubSub:
        return self.bus.federate(self.bus.pubsub(name), self.url, **self.options)

    def persistable(self, value: Any, name: str = "cart") -> FederatedPersistable:
        return self.bus.federate(self.bus.persistable(name, value), self.url, **self.options)

    def service(self, name: str = "price") -> FederatedService:
        return self.bus.federate(self.bus.service(name), self.url, **self.options)


@asynccontextmanager
async def reached(kind: Literal["gateway", "node"], redis_url: str) -> AsyncIterator[Site]:
    """Yield a site whose bus is that of ``redis_url``."""
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {"secret": SECRET}
        if kind == "gateway":
            url = url_of(await stack.enter_async_context(serving(redis_url)))
        else:
            program = await stack.enter_async_context(node())
            opened = program.peer("fedserver", "", [redis_url], secret=NODE_SECRET, path="/fed")
            (port,) = await (await stack.enter_async_context(opened)).expect("listening")
            url, options = f"ws://localhost:{port}/fed", {"secret": NODE_SECRET, "secret_in_query": True}
        yield Site(url, await stack.enter_async_context(Bus(patience=30)), options)
