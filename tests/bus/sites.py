"""Sites for tests: this one, or one behind a gateway of ours or Node's federation server."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock.bus import Bus, Channel, Persistable, PubSub, Queue, Service
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
    """A site, and a bus without a server of its own; or with one, if the site is this one, which has no ``url``."""

    url: str
    bus: Bus
    options: dict[str, Any]

    def queue(self, name: str = "foo") -> Queue | FederatedQueue:
        queue = self.bus.queue(name)
        return self.bus.federate(queue, self.url, **self.options) if self.url else queue

    def channel(self, name: str = "zoo", *roles: str) -> Channel | FederatedChannel:
        channel = self.bus.channel(name, *roles)
        return self.bus.federate(channel, self.url, **self.options) if self.url else channel

    def pubsub(self, name: str = "news") -> PubSub | FederatedPubSub:
        pubsub = self.bus.pubsub(name)
        return self.bus.federate(pubsub, self.url, **self.options) if self.url else pubsub

    def persistable(self, value: Any, name: str = "cart") -> Persistable | FederatedPersistable:
        persistable = self.bus.persistable(name, value)
        return self.bus.federate(persistable, self.url, **self.options) if self.url else persistable

    def service(self, name: str = "price") -> Service | FederatedService:
        service = self.bus.service(name)
        return self.bus.federate(service, self.url, **self.options) if self.url else service


@asynccontextmanager
async def reached(kind: Literal["here", "gateway", "node"], redis_url: str) -> AsyncIterator[Site]:
    """Yield a site whose bus is that of ``redis_url``."""
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {"secret": SECRET}
        if kind == "here":
            yield Site("", await stack.enter_async_context(Bus(redis_url, patience=30)), {})
            return
        if kind == "gateway":
            url = url_of(await stack.enter_async_context(serving(redis_url)))
        else:
            program = await stack.enter_async_context(node())
            opened = program.peer("fedserver", "", [redis_url], secret=NODE_SECRET, path="/fed")
            (port,) = await (await stack.enter_async_context(opened)).expect("listening")
            url, options = f"ws://localhost:{port}/fed", {"secret": NODE_SECRET, "secret_in_query": True}
        yield Site(url, await stack.enter_async_context(Bus(patience=30)), options)
