"""``penstock clear``: delete all keys of a stopped namespace."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.base.encoding import counted, decoded, encoded
from penstock.cli._frame import DEFAULT_URL, Failed, Json, Misused, RedisUrl, ServiceRedisUrl, run
from penstock.cli._servers import servers_of
from penstock.cli._text import print_json, shown
from penstock.cli.status import unknown_namespace

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys

KEYS_PER_CALL: Final = 500
"""Keys that one command deletes."""
DELETED_ROLES: Final = ("pending", "in flight", "delayed", "done", "dead")
"""Roles of lists whose messages are deleted; ``in``, ``out`` and reply lists stay."""


def clear(
    namespace: Annotated[str, typer.Argument(metavar="NS", help="The namespace of a service that is stopped.")],
    yes: Annotated[bool, typer.Option("--yes", help="Confirm permanent deletion.")] = False,
    redis: RedisUrl = DEFAULT_URL,
    service_redis: ServiceRedisUrl = None,
    json: Json = False,
) -> None:
    """Delete all keys of a stopped namespace permanently.

    That is: registrations, pending lists, tracked messages, dead letters, events, metrics and roll-ups. The lists in
    and out stay. Without --yes it deletes nothing and says what it would delete. Fails if an instance is alive.
    """
    run(_clear(namespace, yes, redis, service_redis, json))


async def _clear(namespace: str, yes: bool, url: str, service_url: str | None, as_json: bool) -> int:
    from penstock.base.keys import Keys
    from penstock.inspect.namespace import instances, service_keys

    keys = Keys(namespace)
    async with servers_of(namespace, url, service_url) as (redis, service_redis):
        if alive := await instances(redis, service_redis, keys):
            ids = ", ".join(shown(one.id) for one in alive)
            raise Failed(f"{shown(namespace)} has live instances ({ids}): run penstock stop {shown(namespace)} --all")
        lists = [one for one in await service_keys(redis, keys) if one.role in DELETED_ROLES and one.length]
        messages = Counter[str]()
        for one in lists:
            messages[one.role] += one.length
        servers = {id(server): server for server in (redis, service_redis)}.values()
        found = {server: await _keys(server, keys, [one.name for one in lists]) for server in servers}
        count = sum(map(len, found.values()))
        if not count:
            raise await unknown_namespace(redis, service_redis, namespace)
        if not yes:
            raise Misused(f"{_words(namespace, count, messages)} would be deleted permanently: pass --yes to confirm")
        for server, names in found.items():
            for first in range(0, len(names), KEYS_PER_CALL):
                await server.unlink(*names[first : first + KEYS_PER_CALL])
    if as_json:
        print_json({"namespace": namespace, "keys": count, "messages": dict(messages)})
    else:
        typer.echo(f"deleted {_words(namespace, count, messages)}")
    return 0


async def _keys(redis: "Redis", keys: "Keys", pending: list[str]) -> list[bytes]:
    """Return the keys of the namespace and the lists ``pending``, without those of namespaces nested in it."""
    from penstock.base.keys import Keys, glob_escaped
    from penstock.inspect.namespace import namespaces

    within = [Keys(name) for name in await namespaces(redis) if name.startswith(f"{keys.namespace}:")]
    pattern = encoded(f"{glob_escaped(keys.namespace)}:*")
    found = {key async for key in redis.scan_iter(pattern, count=1000) if keys.owns(decoded(key))}
    found |= {encoded(name) for name in pending if await redis.exists(encoded(name))}
    return sorted(key for key in found if not any(inner.owns(decoded(key)) for inner in within))


def _words(namespace: str, count: int, messages: Counter[str]) -> str:
    parts = [f"{number:,} {role}" for role, number in messages.items()]
    lost = f", with messages: {', '.join(parts)}" if parts else ", which hold no messages"
    return f"{counted(count, 'key')} of {shown(namespace)}{lost}"
