"""The composition that services have registered: each writes the shape of its settings beside its lists."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from redis.asyncio import Redis

from penstock.composition.model import End, Part, Shape, Topology, connected, server_of
from penstock.composition.service import ServiceSettings
from penstock.encoding import decoded, encoded
from penstock.keys import Keys


def shape_json(settings: ServiceSettings) -> str:
    """Return the shape of a service as JSON, for the key ``Keys.shape``; it has no password.

    The service's own server is left out, since other hosts may know it by another name.
    """
    shape = settings.shape()
    ends, watched = ([_end_as_json(end, settings.redis) for end in each] for each in (shape.ends, shape.watched))
    known = {"service": settings.service, "ends": ends, "watched": watched, "watches": shape.watches}
    registry = server_of(settings.service_redis or settings.redis)
    return json.dumps(known | ({} if registry == server_of(settings.redis) else {"registry": registry}))


async def read_registered(redis: "Redis", url: str, namespaces: Iterable[str]) -> Topology:
    """Return the composition of the services of ``namespaces`` that registered on ``redis``, which is at ``url``.

    Services whose registered shape is missing or cannot be parsed are left out.
    """
    names = list(namespaces)
    async with redis.pipeline(transaction=False) as wire:
        for name in names:
            wire.get(encoded(Keys(name).shape))
        replies = await wire.execute(raise_on_error=False) if names else []
    shapes = [_parse_shape(reply, url) if isinstance(reply, bytes) else None for reply in replies]
    found = [(name, *pair) for name, pair in zip(names, shapes, strict=True) if pair]
    return Topology(connected((Part(name, service, name, url=url), shape) for name, service, shape in found))


async def services_without_lists(redis: "Redis", namespace: str) -> list[str]:
    """Return the services that registered in ``namespace`` on ``redis`` and have no lists, such as a gateway."""
    parts = (await read_registered(redis, "", [namespace])).parts
    return [part.service for part in parts if part.service and not part.ends]


def _end_as_json(end: End, url: str) -> dict[str, Any]:
    server = server_of(end.url)
    elsewhere = {"server": server} if server != server_of(url) else {}
    copies = {"copies": True} if end.copies else {}
    return {"key": end.key, "role": end.role, "use": end.use, "kind": end.kind, **copies, **elsewhere}


def _parse_shape(reply: bytes, url: str) -> tuple[str, Shape] | None:
    try:
        said: Mapping[str, Any] = json.loads(decoded(reply))
        ends, watched = ([_parse_end(each, url) for each in said[name]] for name in ("ends", "watched"))
        return str(said["service"]), Shape(ends, watched, [str(name) for name in said["watches"]])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _parse_end(said: Mapping[str, Any], url: str) -> End:
    server = said.get("server")
    there = url if server is None else f"redis://{server}" if ":" in server else f"unix://{server}"
    copies = bool(said.get("copies", False))
    return End(said["key"], said["role"], said["use"], "", there, kind=said["kind"], copies=copies)
