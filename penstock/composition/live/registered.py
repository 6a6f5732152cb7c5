"""The composition that services have registered: each writes the shape of its settings beside its lists."""

from collections.abc import Iterable

from redis.asyncio import Redis

from penstock.base.encoding import encoded
from penstock.base.keys import Keys
from penstock.base.shape import parse_shape
from penstock.composition.model import Composition, Part, connected


async def read_registered(redis: "Redis", url: str, namespaces: Iterable[str]) -> Composition:
    """Return the composition of the services of ``namespaces`` that registered on ``redis``, which is at ``url``.

    Services whose registered shape is missing or cannot be parsed are left out.
    """
    names = list(namespaces)
    async with redis.pipeline(transaction=False) as wire:
        for name in names:
            wire.get(encoded(Keys(name).shape))
        replies = await wire.execute(raise_on_error=False) if names else []
    shapes = [parse_shape(reply, url) if isinstance(reply, bytes) else None for reply in replies]
    found = [(name, *pair) for name, pair in zip(names, shapes, strict=True) if pair]
    return Composition(connected((Part(name, service, name, url=url), shape) for name, service, shape in found))


async def services_without_lists(redis: "Redis", namespace: str) -> list[str]:
    """Return the services that registered in ``namespace`` on ``redis`` and have no lists, such as a gateway."""
    parts = (await read_registered(redis, "", [namespace])).parts
    return [part.service for part in parts if part.service and not part.ends]
