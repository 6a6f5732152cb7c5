"""Derive the least rights of a service from its shape, its scripts, and the commands of its Python code."""

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from penstock.base.keys import Keys, glob_escaped
from penstock.base.shape import Shape
from penstock.core import script
from penstock.core.acl import CONNECT_COMMANDS, Rights, check_rights, script_commands
from penstock.core.connection import connect
from penstock.core.raw_connection import RawConnection

HINT: Final = "penstock acl FILE prints the line that gives all of them"
LUA: Final = Path(__file__).parent / "lua"
REGISTERING: Final = CONNECT_COMMANDS | frozenset(
    {
        *("MULTI", "EXEC", "DISCARD", "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "INFO", "TIME"),
        *("HMGET", "HEXISTS", "LRANGE", "EXISTS"),
    }
)
"""Commands of the kernel's Python code to the server of the registrations."""
KERNEL: Final = REGISTERING | frozenset(
    {
        *(
            "SET",
            "CONFIG|GET",
            "CLIENT|UNBLOCK",
            "BLMOVE",
            "TYPE",
            "HGETALL",
            "HVALS",
            "HSET",
            "HDEL",
            "HINCRBY",
            "EXPIRE",
        ),
        *("ZADD", "ZCARD", "ZREM", "ZRANGE"),
    }
)
"""Commands of the kernel's Python code to the server of the lists."""
REGISTRY: Final = tuple(f"{verb}.lua" for verb in ("next_id", "register", "renew", "compact", "deregister", "answer"))
BATCHES: Final = (LUA / "hold_batch.lua", LUA / "settle_batch.lua")
"""The scripts of ``Context.batches`` and ``Context.settle``."""
DURABLE: Final = {"memory": (), "aof": ("WAITAOF", "LPUSH", "LPOP")}
"""Commands that confirm a batch; every other level waits for replicas."""


class Wanting(Protocol):
    """What settings say of the rights that their service needs."""

    redis: str
    service_redis: str | None
    redis_namespace: str | None
    durability: str

    @property
    def sends(self) -> frozenset[str]:
        """Return commands of the service's Python code, besides the kernel's."""

    @property
    def scripts(self) -> tuple[Path, ...]:
        """Return scripts that it calls, besides the kernel's and those in ``lua`` beside its settings."""

    def shape(self) -> Shape:
        """Return what its lists are."""

    def patterns(self) -> dict[str, tuple[str, ...]]:
        """Return patterns of keys that ``shape`` does not name, by URL."""

    def reads(self) -> dict[str, tuple[str, ...]]:
        """Return patterns of keys that it only reads, by URL."""

    def sends_elsewhere(self) -> frozenset[str]:
        """Return the commands that it sends to other servers."""


def least(settings: Wanting) -> dict[str, Rights]:
    """Return the rights that the service needs, by the URL of the server."""
    keys: dict[str, set[str]] = {settings.redis: set()}
    reads = {url: set(more) for url, more in settings.reads().items()}
    shape = settings.shape()
    for end in shape.ends:
        patterns = keys.setdefault(end.url, set())
        patterns |= {glob_escaped(end.key)} | ({f"{glob_escaped(end.key)}:*"} if end.role == "pending" else set())
    for end in shape.watched:  # it reads the type, to name a key of a wrong one
        reads.setdefault(end.url, set()).add(glob_escaped(end.key))
        keys.setdefault(end.url, set())
    for url, more in settings.patterns().items():
        keys.setdefault(url, set()).update(more)
    elsewhere = settings.sends_elsewhere()
    commands = dict.fromkeys(keys, elsewhere) | {settings.redis: _commands(settings)}
    if settings.redis in settings.patterns():  # what seems to be another server is this one
        commands[settings.redis] |= elsewhere
    directories: tuple[str, ...] = ()
    if settings.redis_namespace:
        registry = settings.service_redis or settings.redis
        for url in (settings.redis, registry):
            keys.setdefault(url, set()).add(f"{glob_escaped(settings.redis_namespace)}:*")
        directories = tuple(map(glob_escaped, Keys(settings.redis_namespace).directories))
        commands[registry] = commands.get(registry, frozenset()) | REGISTERING | of(LUA / name for name in REGISTRY)
    spaces = [settings.redis_namespace, *shape.watches] if "PUBLISH" in commands[settings.redis] else []
    channels = tuple(Keys(glob_escaped(name)).due for name in spaces if name)
    return {
        url: Rights(
            tuple(sorted(keys[url])),
            commands[url],
            channels if url == settings.redis else (),
            tuple(sorted(reads.get(url, ()))),
            directories if url == settings.redis else (),
        )
        for url in keys
    }


def _commands(settings: Wanting) -> frozenset[str]:
    """Return the commands that the service sends to the server of its lists."""
    own = Path(inspect.getfile(type(settings))).parent.glob("lua/*.lua")
    scripts = [LUA / "adopt.lua", script.LUA / "lease.lua", LUA / "note.lua", *own, *settings.scripts]
    return KERNEL | settings.sends | of(scripts) | {*DURABLE.get(settings.durability, ("WAIT", "LPUSH", "LPOP"))}


def of(scripts: Iterable[Path]) -> frozenset[str]:
    """Return the commands that Lua ``scripts`` call."""
    return frozenset[str]().union(*map(script_commands, scripts))


async def require_rights(settings: Wanting, names: Sequence[str]) -> None:
    """Raise ``Unsuitable`` with all rights that users lack on the service's own servers, for the keys ``names``."""
    rights, space = least(settings), settings.redis_namespace
    if not names and not space:
        return  # it works on no keys
    for url in dict.fromkeys((settings.redis, settings.service_redis or settings.redis)):
        probe = Keys(space).metric("rights") if space else names[0]
        await require_at(url, rights[url], probe, names if url == settings.redis else names[-1:])


async def require_at(url: str, rights: Rights, probe: str, names: Sequence[str]) -> None:
    """Call ``penstock.core.acl.require`` on a connection without a name, since naming one needs a right itself."""
    redis = connect(url, name=None)
    wire = RawConnection(redis)
    try:
        await check_rights(wire, rights, probe, names, HINT)
    finally:
        await wire.close()
        await redis.aclose()
