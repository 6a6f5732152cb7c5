"""How a namespace tracks its messages: what its mdispatch has said of itself for all who look after them."""

from dataclasses import dataclass
from typing import Self

from redis.asyncio import Redis

from penstock.backoff import Backoff
from penstock.keys import Keys
from penstock.names import decoded, encoded


@dataclass(frozen=True)
class Policy:
    """The hash ``Keys.policy``; times in seconds."""

    timeout: float
    """What a worker has for an attempt."""
    expire: int
    """What a record lives."""
    attempts: int
    backoff: Backoff
    source: str
    out: str
    done: str
    history: int
    """Most events to keep."""
    reply_expire: int
    reply_to: str
    """Where answers go whose request does not say; none if empty."""

    @classmethod
    async def read(cls, redis: "Redis", keys: Keys) -> Self | None:
        """None for a namespace that tracks nothing, or says it in words that cannot be read."""
        found = {decoded(name): decoded(value) for name, value in (await redis.hgetall(encoded(keys.policy))).items()}
        try:
            return cls(
                timeout=float(found["messageTimeout"]),
                expire=int(found["messageExpire"]),
                attempts=int(found["attempts"]),
                backoff=Backoff.read(found["backoff"]),
                source=found["source"],
                out=found["out"],
                done=found["done"],
                history=int(found["eventCapacity"]),
                reply_expire=int(found["replyExpire"]),
                reply_to=found.get("replyTo", ""),
            )
        except (KeyError, ValueError, TypeError):
            return None
