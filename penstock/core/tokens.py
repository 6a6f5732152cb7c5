"""Tokens of programs that use a service over HTTP: opaque texts, of which only the SHA-256 is stored."""

import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.base.encoding import decoded, decoded_fields, parse_number
from penstock.core.atomic import AtomicWrites
from penstock.core.connection import server_time

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.base.keys import Keys

PREFIX: Final = "pst_"
"""By which scanners for leaked secrets find a token."""
ID_DIGITS: Final = 12
RIGHTS: Final = ("ask", "add", "fetch", "ack", "info", "rewind", "admin")
"""The rights of himporter, ``ask``, and of hqueue; services of others may have more."""


@dataclass(frozen=True)
class Token:
    """What is known of a token, which nobody can print again."""

    digest: str
    owner: str
    rights: tuple[str, ...]
    created: float
    """Seconds since the epoch, as ``expires``."""
    expires: float | None
    service: str = ""
    """The only service whose queue it is for (hqueue); empty: any."""

    @property
    def id(self) -> str:
        """Return the first digits of the digest."""
        return self.digest[:ID_DIGITS]

    @classmethod
    def parse(cls, digest: str, fields: Any) -> Self | None:
        """Return the token whose hash has ``fields``; None if it does not exist."""
        if not fields:
            return None
        found = decoded_fields(fields)
        rights = tuple(found.get("rights", "").split())
        created = parse_number(found.get("created")) or 0.0
        expires, service = parse_number(found.get("expires")), found.get("service", "")
        return cls(digest, found.get("owner", ""), rights, created, expires, service)


def digest_of(token: str) -> str:
    """Return the name under which a token is stored. It has 256 random bits, so a slow hash would add nothing."""
    return sha256(token.encode(errors="surrogatepass")).hexdigest()


async def add_token(
    redis: "Redis", keys: "Keys", owner: str, rights: tuple[str, ...], seconds: float | None, service: str = ""
) -> tuple[str, Token]:
    """Make a token for ``owner``, which ends after ``seconds``; return it, this once, and what is stored of it."""
    token = PREFIX + secrets.token_urlsafe(32)
    now = await server_time(redis)
    made = Token(digest_of(token), owner, rights, now, None if seconds is None else now + seconds, service)
    key = keys.token(made.digest)
    async with AtomicWrites(redis) as writes:
        writes.zadd(keys.tokens, {made.digest: now})
        writes.hset(key, items=["owner", owner, "rights", " ".join(rights), "created", f"{now:.3f}"])
        if service:
            writes.hset(key, "service", service)
        if made.expires is not None:
            writes.hset(key, "expires", f"{made.expires:.3f}")
            writes.expireat(key, int(made.expires) + 1)
        await writes.execute()
    return token, made


async def read_tokens(redis: "Redis", keys: "Keys") -> list[Token]:
    """Return all tokens that have not ended, the oldest first; forget those that have."""
    found = list[Token]()
    for digest in map(decoded, await redis.zrange(keys.tokens, 0, -1)):
        token = Token.parse(digest, await redis.hgetall(keys.token(digest)))
        if token:
            found.append(token)
        else:
            await redis.zrem(keys.tokens, digest)
    return found


async def revoke_token(redis: "Redis", keys: "Keys", id: str) -> list[Token]:
    """Remove the token whose digest begins with ``id``; return those that match, and remove none of several."""
    matching = [token for token in await read_tokens(redis, keys) if token.digest.startswith(id)]
    if len(matching) == 1:
        async with AtomicWrites(redis) as writes:
            writes.delete(keys.token(matching[0].digest))
            writes.zrem(keys.tokens, matching[0].digest)
            await writes.execute()
    return matching
