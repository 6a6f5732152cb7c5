"""The minimal ACL rights of services and tools: keys, channels and commands for ``ACL SETUSER``."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from redis.exceptions import NoPermissionError, ResponseError

from penstock.base.encoding import encoded
from penstock.base.errors import Unsuitable
from penstock.core.raw_connection import Command, RawConnection, pack
from penstock.core.script import LUA, PART

COMMAND_WORD: Final = re.compile(r"""['"]([A-Z][A-Z_]+)['"](?=(?:, *['"]([A-Z]+)['"])?)""")
"""A word of a script that may be a command, and the next one, which may be its subcommand."""
ALLOW_OOM: Final = re.compile(r"^-- FLAGS allow-oom$", re.MULTILINE)
FIRST_WRITE: Final = frozenset({"EXISTS", "RENAMENX", "UNLINK"})
"""Commands that the loader puts before a script that is flagged ``allow-oom``."""

COMMANDS: Final[dict[str, tuple[bool, int]]] = {
    **dict.fromkeys(("DISCARD", "EXEC", "INFO", "MULTI", "PING", "ROLE", "TIME", "CLIENT|ID"), (False, 0)),
    **dict.fromkeys(("SCAN", "CLIENT|UNBLOCK", "CLIENT|SETNAME", "SCRIPT|LOAD"), (False, 1)),
    **dict.fromkeys(("CONFIG|GET", "CLIENT|LIST", "ECHO"), (False, 1)),
    **dict.fromkeys(("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "WAIT"), (False, 2)),
    **dict.fromkeys(("WAITAOF",), (False, 3)),
    **dict.fromkeys(("DEL", "EXISTS", "GET", "HGETALL", "HLEN", "HVALS", "INCR", "LLEN", "LPOP", "PERSIST"), (True, 0)),
    **dict.fromkeys(
        ("PTTL", "RPOP", "SCARD", "STRLEN", "TTL", "TYPE", "UNLINK", "XLEN", "ZCARD", "MEMORY|USAGE", "XINFO|STREAM"),
        (True, 0),
    ),
    "MGET": (True, 0),
    "GETRANGE": (True, 2),
    **dict.fromkeys(
        ("EXPIRE", "EXPIREAT", "HDEL", "HEXISTS", "HGET", "HMGET", "HSTRLEN", "INCRBY", "LINDEX", "LPOS"), (True, 1)
    ),
    **dict.fromkeys(("LPUSH", "LPUSHX", "PEXPIRE", "PEXPIREAT", "RENAME", "RENAMENX", "RPUSH"), (True, 1)),
    **dict.fromkeys(("SADD", "SET", "SSCAN", "ZRANK", "ZREM", "ZSCAN", "ZSCORE", "ZMSCORE"), (True, 1)),
    **dict.fromkeys(("HINCRBY", "HSET", "HSETNX", "LRANGE", "LREM", "LSET", "LTRIM", "XRANGE", "XREVRANGE"), (True, 2)),
    **dict.fromkeys(("HINCRBYFLOAT", "XTRIM", "ZADD", "ZCOUNT", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE"), (True, 2)),
    **dict.fromkeys(("ZREVRANGEBYSCORE", "ZREMRANGEBYRANK", "ZREMRANGEBYSCORE"), (True, 2)),
    **dict.fromkeys(("LMOVE", "XADD"), (True, 3)),
    **dict.fromkeys(("HRANDFIELD", "XINFO|GROUPS"), (True, 0)),
    **dict.fromkeys(("XDEL", "XPENDING", "XINFO|CONSUMERS"), (True, 1)),
    **dict.fromkeys(("XACK", "XGROUP|CREATE", "XGROUP|DELCONSUMER", "XGROUP|SETID"), (True, 2)),
    "XCLAIM": (True, 4),
    "XREADGROUP": (False, 6),
    **dict.fromkeys(("BLMOVE",), (True, 4)),
    **dict.fromkeys(("PUBLISH", "PSUBSCRIBE", "SUBSCRIBE", "UNSUBSCRIBE"), (False, 1)),
}
"""All commands that Penstock sends: whether the first argument is a key, and the minimum number of further ones."""
TWO_KEY_COMMANDS: Final = frozenset({"BLMOVE", "LMOVE", "RENAME", "RENAMENX"})
CHANNEL_COMMANDS: Final = frozenset({"PUBLISH", "PSUBSCRIBE", "SUBSCRIBE", "UNSUBSCRIBE"})
TRANSACTION_COMMANDS: Final = frozenset({"MULTI", "EXEC", "DISCARD"})
UNKNOWN_TO_OLD: Final = frozenset({"EVAL_RO", "EVALSHA_RO"})
"""Commands that Redis 6.2 does not know."""
OPTIONAL_COMMANDS: Final = UNKNOWN_TO_OLD | {"CONFIG|GET"}
"""Commands that a service can do without."""
CONNECT_COMMANDS: Final = frozenset({"CLIENT|SETNAME", "CLIENT|ID", "PING"})
READ_COMMANDS: Final = CONNECT_COMMANDS | frozenset(
    {
        *("ECHO", "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "INFO", "SCAN", "TIME", "TYPE", "EXISTS", "TTL", "PTTL"),
        *("DBSIZE", "PUBSUB|NUMSUB"),
        *("GET", "STRLEN", "HGET", "HMGET", "HGETALL", "HVALS", "HLEN", "HEXISTS", "LLEN", "LINDEX", "LRANGE", "LPOS"),
        *("SCARD", "XLEN", "XRANGE", "XREVRANGE", "ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE", "ZSCORE", "ZRANK"),
        *("GETRANGE", "XINFO|CONSUMERS", "XINFO|GROUPS", "XPENDING", "ZMSCORE", "ZSCAN"),
    }
)
"""Commands that ``penstock status``, ``audit``, ``explain``, ``trace``, ``dead``, ``map --live``, ``bus status``,
``bus queue``, ``jobs status``, ``jobs list`` and ``jobs show`` send."""
METRICS_COMMANDS: Final = CONNECT_COMMANDS | frozenset(
    {"INFO", "SCAN", "TYPE", "TTL", "HGETALL", "HMGET", "HGET", "HLEN", "LLEN", "XLEN", "ZCARD"}
)
"""Commands that an exporter of metrics needs: counters and lengths, no messages."""

FOUND_KEYS: Final = (
    "*:consumers",
    "*:consumers:steps",
    *(f"bus:queue:*:{part}" for part in ("metadata", "msgid", "consumer")),
    *(f"hfxbus:{kind}:*" for kind in ("str", "later", "repeats", "dead", "paused", "wait")),
)
"""Keys from which ``penstock.inspect.waiting`` sees who takes from lists, streams and queues; it reads no message."""
FOUND_COMMANDS: Final = frozenset(
    {
        *("EXISTS", "GET", "HGET", "HGETALL", "HLEN", "HMGET", "LLEN", "PTTL", "SCAN", "TIME", "TYPE"),
        *("PUBSUB|NUMSUB", "XINFO|CONSUMERS", "XINFO|GROUPS", "XLEN", "XRANGE"),
        *("ZCARD", "ZRANGE", "ZREMRANGEBYSCORE"),
    }
)

SPARK_COMMANDS: Final = CONNECT_COMMANDS | frozenset(
    {
        *("ECHO", "EVAL", "EVALSHA", "EXISTS", "INFO", "SCAN", "TIME", "MULTI", "EXEC", "DISCARD"),
        *("EXPIRE", "HGET", "HGETALL", "HLEN", "HMGET", "HSET", "LLEN", "LPUSH", "LRANGE", "LTRIM"),
        *("TYPE", "UNLINK", "XINFO|STREAM", "XRANGE", "XREVRANGE", "ZREVRANGEBYSCORE"),
    }
)
"""Commands that the Python code of the PySpark sources and sinks of lists, hashes and streams sends."""
SPARK_KEY_COMMANDS: Final = frozenset({"GET", "SET", "SADD", "SSCAN", "ZADD", "ZSCAN"})
"""What those of strings, sets and sorted sets send besides, which the pipeline does not use."""


def spark_rights(key: str) -> "Rights":
    """Return the rights of a PySpark program that reads or writes ``key``, a name or a glob-style pattern."""
    space, _, kind = key.rpartition(":")
    more = (f"{space}:policy", f"{space}:metrics:events") if kind == "events" else ()
    scripts = (LUA.parent / "spark" / "lua").glob("*.lua")
    commands = SPARK_COMMANDS.union(SPARK_KEY_COMMANDS, *map(script_commands, scripts))
    beside = (f"{key}:marks", f"{key}:spark*", f"{{{key}}}:spark*")
    return Rights(_minimal((key, *beside, "penstock:spark*", *more)), commands)


def script_commands(file: Path) -> frozenset[str]:
    """Return the commands that the Lua script ``file`` and its parts call."""
    text = file.read_text()
    pairs = COMMAND_WORD.findall(text)
    found = {name for word, next in pairs for name in (word, f"{word}|{next}")} & COMMANDS.keys()
    for part in PART.findall(text):
        found |= script_commands(LUA / "parts" / f"{part}.lua")
    return frozenset(found | (FIRST_WRITE if ALLOW_OOM.search(text) else set()))


@dataclass(frozen=True)
class Rights:
    """The rights of a user on a server. ``keys``, ``channels``, ``reads`` and ``sets`` are glob-style patterns.

    Keys in ``reads`` are only read. Of hashes in ``sets`` fields may be set, too, and never removed. Of lists in
    ``lengths`` only the length is read, which Redis 6.2 cannot grant: there it is not.
    """

    keys: tuple[str, ...]
    commands: frozenset[str]
    channels: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    lengths: tuple[str, ...] = ()

    def __or__(self, other: "Rights") -> "Rights":
        keys, channels = self.keys + other.keys, self.channels + other.channels
        return Rights(
            _minimal(keys),
            self.commands | other.commands,
            _minimal(channels),
            _minimal(self.reads + other.reads),
            _minimal(self.sets + other.sets),
            _minimal(self.lengths + other.lengths),
        )

    def line(self, user: str, password: str = "PASSWORD", *, old: bool = False) -> str:
        """Return the redis-cli command that gives ``user`` these rights and no others.

        An ``old`` server, Redis 6.2, knows no right to read alone: there the same keys may be written.
        """
        if old:
            former = Rights(self.keys + self.reads + self.sets, self.commands - UNKNOWN_TO_OLD, self.channels)
            return former.line(user, password)
        keys = _minimal(self.keys)
        read = [each for each in _minimal(self.reads + self.sets) if not any(fnmatchcase(each, key) for key in keys)]
        words = [f"~{pattern}" for pattern in keys] + [f"%R~{pattern}" for pattern in read]
        words += [f"&{pattern}" for pattern in _minimal(self.channels)]
        words += [f"+{command.lower()}" for command in sorted(self.commands)]
        words += [f"(~{pattern} +hset)" for pattern in _minimal(self.sets) if pattern in read]
        words += [f"(%R~{pattern} +llen)" for pattern in _minimal(self.lengths)]
        return " ".join(["ACL SETUSER", user, "reset on", f">{password}", *map(_quoted, words)])


def _minimal(patterns: Collection[str]) -> tuple[str, ...]:
    """Return ``patterns`` sorted, without those that another one covers."""
    every = sorted(set(patterns))
    return tuple(one for one in every if not any(fnmatchcase(one, other) for other in every if other != one))


def _quoted(word: str) -> str:
    """Return ``word`` as redis-cli reads it: in double quotes if it holds anything unusual.

    A pattern cannot have a blank, whatever the quotes: Redis refuses it. So ``?`` stands for one.
    """
    if word.startswith("("):
        return "(" + " ".join(map(_quoted, word[1:-1].rsplit(" ", 1))) + ")"
    word = re.sub(r"\s", "?", word)
    if re.fullmatch(r"[\w~&+:|*?%\[\]{}./@-]+", word):
        return word
    return '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


async def check_rights(connection: RawConnection, rights: Rights, probe: str, keys: Collection[str], hint: str) -> None:
    """Raise ``Unsuitable`` with all ``rights`` and ``keys`` that the user of ``connection`` lacks.

    Queue every command, with the key ``probe``, in a MULTI, in which the server refuses what the user may not do, and
    discard it: nothing is executed. Ignore other refusals (full, read-only, loading); the next command meets them.
    """
    commands = sorted(rights.commands - TRANSACTION_COMMANDS - OPTIONAL_COMMANDS)
    calls = [_call(command, probe, rights.channels) for command in commands]
    calls += [("EXISTS", encoded(key)) for key in keys]
    await connection.send(pack([("MULTI",)]))
    (begun,) = await connection.receive(1)
    if isinstance(begun, NoPermissionError):
        raise Unsuitable(f"the user of this service may not do MULTI; {hint}")
    if isinstance(begun, ResponseError):
        return
    await connection.send(pack([*calls, ("DISCARD",)]))
    *replies, _ = await connection.receive(len(calls) + 1)
    refused = [str(reply) if isinstance(reply, NoPermissionError) else "" for reply in replies]
    lacking = [f"+{command.lower()}" for command, words in zip(commands, refused, strict=False) if words]
    lacking += [f"~{key}" for key, words in zip(keys, refused[len(commands) :], strict=True) if " key" in words]
    if lacking:
        raise Unsuitable(f"the user of this service lacks rights: {' '.join(lacking)}; {hint}")


def _call(command: str, key: str, channels: tuple[str, ...]) -> Command:
    """Return a well-formed call of ``command``."""
    with_key, more = COMMANDS[command]
    name, *sub = command.split("|")
    if command in CHANNEL_COMMANDS:
        channel = re.sub(r"\\(.)", r"\1", channels[0]) if channels else key  # the name that the pattern is of
        return (name, encoded(channel), *["0"] * (command == "PUBLISH"))
    keys = [encoded(key)] * (with_key + (command in TWO_KEY_COMMANDS))
    return (name, *sub, *keys, *["0"] * (more + with_key - len(keys)))
