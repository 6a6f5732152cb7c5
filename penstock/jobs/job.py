"""A job: an id, and values beside it in the server, each with a time to live."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import TypeAdapter, ValidationError

from penstock.base.errors import Unreadable, WrongCall
from penstock.base.exact_json import parse_whole
from penstock.base.payload import as_json
from penstock.base.validation import describe_error
from penstock.core.script import Script
from penstock.jobs.keys import checked_name
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance

WEEK: Final = 604_800.0
MAX_TTL: Final = 315_360_000.0
MAX_OPERATIONS: Final = 1_000
_payload: Final = Script.read(Path(__file__).parent / "lua" / "payload.lua")


@lru_cache(256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def packed_value(key: str, value: Any) -> bytes:
    """Return a value as it is stored: bytes as they are, anything else as JSON. ``WrongCall`` names ``key``."""
    if type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        return as_json(value)
    except WrongCall as error:
        raise WrongCall(f"value {key!r}: {error}") from None


class Job:
    """Values of one job. ``set``, ``get`` and ``delete`` collect what ``push`` or ``pull`` does in one round trip.

    ``await job.set("in", {"page": 7}).push()``, and elsewhere ``[page] = await job.get("in").pull()``.
    """

    def __init__(self, servers: Servers, id: str | None, *, is_checked: bool = False) -> None:
        self._servers = servers
        self._is_fresh = id is None
        """Whether nobody else can know its id yet."""
        self.id = servers.new_id() if id is None else id if is_checked else checked_name("job", id)
        self._sets: dict[str, tuple[bytes, int]] = {}
        self._gets: list[tuple[str, Any]] = []
        self._deletes: list[str] = []
        self._known: dict[str, None] = {}
        """The keys of its values, as far as this program knows them."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def _node(self) -> "Instance":
        """The server of its values."""
        return self._servers.node(self.id)

    def set(self, key: str, value: Any, *, ttl: float = WEEK) -> Self:
        """Set a value, bytes or anything that is JSON, for ``ttl`` seconds."""
        if not 0.001 <= ttl <= MAX_TTL:
            raise WrongCall(f"value {key!r}: ttl={ttl}: expected seconds, more than 0 and up to {MAX_TTL:,.0f}")
        self._sets[checked_name("key", key)] = packed_value(key, value), int(ttl * 1000)
        self._known[key] = None
        return self._bounded()

    def get(self, key: str, kind: Any = None) -> Self:
        """Read a value: as JSON, as ``bytes``, or as any other type that pydantic knows.

        A float that has more digits than a double holds keeps them if it is set or pushed again as JSON.
        """
        self._gets.append((checked_name("key", key), kind))
        self._known[key] = None
        return self._bounded()

    def delete(self, key: str) -> Self:
        """Delete a value, after what is read."""
        self._deletes.append(checked_name("key", key))
        self._known.pop(key, None)
        return self._bounded()

    async def push(self) -> None:
        """Do what was collected. Raise ``Unavailable``, ``WrongType``."""
        await self.pull()

    async def pull(self) -> list[Any]:
        """Do what was collected, and return what was read, None for what is missing.

        Raise ``Unreadable`` for what is not of the type that was asked for, else as ``push``.
        """
        operations = [(key, "get", b"", 0) for key, _ in self._gets]
        operations += [(key, "set", value, ttl) for key, (value, ttl) in self._sets.items()]
        operations += [(key, "del", b"", 0) for key in self._deletes]
        kinds, self._gets, self._deletes = self._gets, [], []
        self._sets.clear()
        if not operations:
            return []
        self._is_fresh = False
        keys = [self._servers.keys.payload(self.id, key) for key, *_ in operations]
        if len(kinds) == len(operations):
            found = await self._node.ask("MGET", *keys)
            if None in found:  # missing, or of the wrong type
                found = await self._node.run(_payload, keys=keys, words=["get", "", 0] * len(keys))
            return [self._read(key, value, kind) for (key, kind), value in zip(kinds, found, strict=True)]
        words = [word for _, *each in operations for word in each]
        found = await self._node.run(_payload, keys=keys, words=words)
        return [self._read(key, value, kind) for (key, kind), value in zip(kinds, found, strict=True)]

    def _read(self, key: str, value: bytes | None, kind: Any = None) -> Any:
        """Return ``value``, as it is stored under ``key``, as JSON, as ``bytes`` or as another type.

        Raise ``Unreadable`` if it is not of that type.
        """
        if value is None or kind is bytes:
            return value
        try:
            found = parse_whole(value) if value else None
        except (ValueError, RecursionError):
            raise Unreadable(f"value {key!r} of job {self.id}: it is no JSON: ask for it with bytes") from None
        if kind is None:
            return found
        try:
            return _adapter(kind).validate_python(found)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, problem["loc"]))
            raise Unreadable(
                f"value {key!r} of job {self.id}: {place or 'all of it'}: {describe_error(problem)}"
            ) from None

    def _take_sets(self) -> dict[str, tuple[bytes, int]]:
        """Return what is to be set, with its time to live (ms), for who sets it together with something else."""
        sets, self._sets = self._sets, {}
        self._is_fresh = False
        return sets

    def _renew_id(self) -> None:
        """Take another id; nobody knows the former one."""
        self.id = self._servers.new_id()

    def _bounded(self) -> Self:
        if len(self._sets) + len(self._gets) + len(self._deletes) > MAX_OPERATIONS:
            raise WrongCall(f"more than {MAX_OPERATIONS:,} values at once")
        return self
