"""A composition as its services have registered it: each writes the shape of its settings beside its lists."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from redis.asyncio import Redis

from penstock.composition.model import End, Part, Shape, Topology, connected, server_of
from penstock.encoding import decoded, encoded
from penstock.keys import Keys


def written(settings: Any) -> str:
    """What the settings of a service say of its place, for the key ``Keys.shape``, without a password.

    Its own server goes without a name, since others may call it otherwise.
    """
    shape: Shape = settings.shape()
    ends, watched = ([_plain(end, settings.redis) for end in each] for each in (shape.ends, shape.watched))
    known = {"service": settings.service, "ends": ends, "watched": watched, "watches": shape.watches}
    registry = server_of(settings.service_redis or settings.redis)
    return json.dumps(known | ({} if registry == server_of(settings.redis) else {"registry": registry}))


async def read(redis: "Redis", url: str, namespaces: Iterable[str]) -> Topology:
    """What the services of ``namespaces`` said of themselves, on the server ``redis``, which is at ``url``.

    Those that said nothing that can be understood are left out.
    """
    names = list(namespaces)
    async with redis.pipeline(transaction=False) as wire:
        for name in names:
            wire.get(encoded(Keys(name).shape))
        replies = await wire.execute(raise_on_error=False) if names else []
    said = [(name, _shape(reply, url)) for name, reply in zip(names, replies, strict=True) if isinstance(reply, bytes)]
    return Topology(connected(found for name, pair in said if pair and (found := (_part(name, pair[0]), pair[1]))))


def _part(namespace: str, service: str) -> Part:
    return Part(namespace, service, namespace)


def _plain(end: End, url: str) -> dict[str, Any]:
    server = server_of(end.url)
    elsewhere = {"server": server} if server != server_of(url) else {}
    copies = {"copies": True} if end.copies else {}
    return {"key": end.key, "role": end.role, "use": end.use, "kind": end.kind, **copies, **elsewhere}


def _shape(reply: bytes, url: str) -> tuple[str, Shape] | None:
    try:
        said: Mapping[str, Any] = json.loads(decoded(reply))
        ends, watched = ([_end(each, url) for each in said[name]] for name in ("ends", "watched"))
        return str(said["service"]), Shape(ends, watched, [str(name) for name in said["watches"]])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _end(said: Mapping[str, Any], url: str) -> End:
    server = said.get("server")
    there = url if server is None else f"redis://{server}" if ":" in server else f"unix://{server}"
    copies = bool(said.get("copies", False))
    return End(said["key"], said["role"], said["use"], "", there, kind=said["kind"], copies=copies)
