"""Read or write many keys atomically, as MULTI does, also on a server whose memory is full.

A full Redis refuses to queue any command in MULTI, even LLEN. It always runs a script that only reads, or that is
flagged ``allow-oom``.
"""

from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakSet

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError

from penstock.base.encoding import decoded
from penstock.base.errors import TooMany, WrongType
from penstock.core.raw_connection import Command
from penstock.core.script import LUA, Script, translate_error

MAX_COMMANDS: Final = 5_000
"""Commands in one script. It blocks the server while it runs: about 5 ms for the lengths of this many lists."""

_snapshot, _writes = (Script.read(LUA / f"{verb}.lua") for verb in ("snapshot", "writes"))
_callbacks: Final = Redis(protocol=2).response_callbacks
"""Scripts return RESP2 replies, whichever protocol the client uses."""
_without_ro: Final["WeakSet[Any]"] = WeakSet()
"""Connection pools on which EVAL_RO is unknown (Redis 6.2) or not allowed."""


class _AtomicCommands(Pipeline):
    """Collect commands like ``redis.pipeline()``. The first argument of each is its only key; TIME has none."""

    def __init__(self, redis: "Redis") -> None:
        super().__init__(redis.connection_pool, _callbacks, transaction=True, shard_hint=None)
        self._redis = redis

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Run the commands atomically; return their replies in order.

        Raise ``WrongType`` with the name of the key, and ``TooMany`` for more than ``MAX_COMMANDS`` commands. With
        ``raise_on_error=False``, return an error (``WrongType`` or ``ResponseError``) as the reply of its command.
        """
        stack, self.command_stack = self.command_stack, []
        if not stack:
            return []
        if len(stack) > MAX_COMMANDS:
            raise TooMany(
                f"{len(stack):,} commands at one instant would hold the server for long: at most {MAX_COMMANDS:,}"
            )
        keys: list[Any] = [args[1] for args, _ in stack if len(args) > 1]
        words: list[Any] = []
        for (name, *args), _ in stack:
            words += [name, int(bool(args)), len(args[1:]), *args[1:]]
        replies = await self._run(keys, words)
        parsed = [_parsed(*call, reply) for call, reply in zip(stack, replies, strict=True)]
        for reply in parsed if raise_on_error else ():
            if isinstance(reply, Exception):
                raise reply
        return parsed

    async def _run(self, keys: list[Any], words: list[Any]) -> Any:
        raise NotImplementedError


class AtomicRead(_AtomicCommands):
    """Collect commands that only read; ``execute`` returns a consistent snapshot.

    On Redis Cluster, all keys must be in one slot.
    """

    async def _run(self, keys: list[Any], words: list[Any]) -> Any:
        try:
            return await _reading(self._redis, _snapshot.by_digest(keys=keys, words=words))
        except NoScriptError:
            return await _reading(self._redis, _snapshot.by_source(keys=keys, words=words))


class AtomicWrites(_AtomicCommands):
    """Collect commands that write at most a few bytes; the first must have a key."""

    async def _run(self, keys: list[Any], words: list[Any]) -> Any:
        return await _writes(self._redis, keys=keys, words=words)


async def replies_of(pipeline: "Pipeline") -> list[Any]:
    """Execute ``pipeline``; return its replies, with None for a key of the wrong type. Raise any other error."""
    replies = await pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(translate_error(reply), WrongType):
            raise reply
    return [None if isinstance(reply, Exception) else reply for reply in replies]


def _parsed(args: Any, options: Mapping[str, Any], reply: Any) -> Any:
    """Return ``reply`` as the client parses the reply of the same command sent alone."""
    if isinstance(reply, ResponseError):
        error = translate_error(reply)
        return error if error is not reply else ResponseError(f"{' '.join(map(decoded, args[:2]))}: {reply}")
    options = {name: value for name, value in options.items() if name != "keys"}  # for redis-py's cache
    callback = _callbacks.get(args[0])
    return callback(reply, **options) if callback else reply


async def _reading(redis: "Redis", command: Command) -> Any:
    """Run ``command`` as EVAL_RO, which read-only users and replicas may run; fall back to EVAL if refused."""
    name, *words = command
    if redis.connection_pool not in _without_ro:
        try:
            return await redis.execute_command(f"{name!s}_RO", *words)
        except NoScriptError:
            raise
        except (ResponseError, NoPermissionError) as error:
            if f"{name!s}_RO".lower() not in str(error).lower():
                raise
            _without_ro.add(redis.connection_pool)
    return await redis.execute_command(*command)
