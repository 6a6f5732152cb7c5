"""Discovery: which instances of a namespace are there and ready, and where."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.base.encoding import decoded, decoded_fields, parse_number
from penstock.base.keys import Keys

if TYPE_CHECKING:
    from redis.asyncio import Redis

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks for instances that have gone without a word."""
ADDRESS: Final = r"[A-Za-z0-9._~:/@%?=&+\[\]-]+"
"""What an address may be: files of configuration and shells take it as one word."""
PROGRAM: Final = "sregister"
"""The service whose instances say whether they are ready; one that has not said it yet is not."""


@dataclass(frozen=True)
class Found:
    """An instance of a program, or of a service."""

    id: str
    host: str
    pid: str
    service: str
    version: str
    address: str | None
    """Where others reach it, as it has said."""
    ready: bool
    why: str
    """Why it is not ready; empty if it is."""
    started: float
    """Since the epoch (s), by the clock of the server."""


async def discovered(redis: "Redis", namespace: str) -> list[Found]:
    """Return the live instances of a namespace, the oldest first."""
    keys = Keys(namespace)
    async with redis.pipeline(transaction=False) as wire:
        ids = [decoded(each) for each in await redis.lrange(keys.ids, 0, -1)]
        for id in ids:
            wire.hgetall(keys.instance(id))
        said: list[Any] = await wire.execute() if ids else []
    found = [_found(id, decoded_fields(fields)) for id, fields in zip(ids, said, strict=True) if fields]
    return sorted(found, key=lambda each: (each.started, len(each.id), each.id))


async def watch(redis: "Redis", listener: "Redis", namespace: str) -> AsyncIterator[list[Found]]:
    """Yield the live instances now, and again at each change, of which ``listener`` hears on its own connection."""
    last: list[Found] | None = None
    async with listener.pubsub() as news:
        await news.subscribe(Keys(namespace).ready)
        while True:
            found = await discovered(redis, namespace)
            if found != last:
                last = found
                yield found
            end = asyncio.get_running_loop().time() + LOOK_SECONDS
            while (left := end - asyncio.get_running_loop().time()) > 0:
                if (await news.get_message(timeout=left) or {}).get("type") == "message":
                    break


def _found(id: str, fields: Mapping[str, str]) -> Found:
    said = fields.get("ready", "0" if fields.get("service") == PROGRAM or "waiting" in fields else "1")
    ready = said == "1"
    why = "" if ready else fields.get("unready") or fields.get("waiting") or "starting"
    started = parse_number(fields.get("started")) or 0.0
    host, pid, service, version = (fields.get(name, "") for name in ("host", "pid", "service", "version"))
    return Found(id, host, pid, service, version, fields.get("address"), ready, why, started)
