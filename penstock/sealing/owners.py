"""Owners that have data keys: list and forget them, which needs neither the master key nor ``cryptography``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.base.encoding import decoded, parse_number, parse_whole
from penstock.core.script import Script

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys

LUA: Final = Path(__file__).parent / "lua"
_forget: Final = Script.read(LUA / "forget.lua")


@dataclass(frozen=True)
class KeyRecord:
    """What Redis has of an owner's data keys. Times are in seconds since the epoch."""

    owner: str
    wrapped: Mapping[int, bytes]
    """The wrapped data keys by epoch."""
    made: float | None
    """When the newest was made."""
    sealed: int
    """About how many messages were sealed with the newest."""
    forgotten: float | None
    """When the owner was forgotten."""

    @property
    def epoch(self) -> int:
        """Return the epoch of the newest key; 0 if there is none."""
        return max(self.wrapped, default=0)

    @classmethod
    def parse(cls, owner: str, fields: Mapping[bytes, bytes]) -> Self:
        """Return the record in the hash ``fields``, which may be empty."""
        return cls(
            owner,
            {int(name): value for name, value in fields.items() if name.isdigit()},
            parse_number(fields.get(b"made")),
            parse_whole(fields.get(b"sealed")) or 0,
            parse_number(fields.get(b"forgotten")),
        )


async def read_record(redis: "Redis", keys: "Keys", owner: str) -> KeyRecord:
    """Return the record of ``owner``; it has no keys if the owner is unknown."""
    fields: Any = await redis.hgetall(keys.owner_keys(owner))
    return KeyRecord.parse(owner, fields)


async def read_owners(redis: "Redis", keys: "Keys") -> list[KeyRecord]:
    """Return the records of all owners, forgotten ones, too: the one that has had keys for longest first."""
    names = [decoded(name) for name in await redis.zrange(keys.key_owners, 0, -1)]
    return [await read_record(redis, keys, name) for name in names]


async def forget_owner(redis: "Redis", keys: "Keys", owner: str) -> int:
    """Delete the data keys of ``owner`` for good; return how many there were. The owner never gets another one."""
    named = {"wrapped": keys.owner_keys(owner), "owners": keys.key_owners, "channel": keys.key_changes}
    return int(await _forget(redis, owner=owner, **named))
