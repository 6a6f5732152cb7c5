"""How a namespace tracks its messages: what its mdispatch has said of itself for all who look after them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from redis.asyncio import Redis

from penstock.encoding import decoded_fields, encoded
from penstock.keys import Keys
from penstock.tracking.backoff import Backoff


def untaken_check_interval(timeout: float) -> float:
    """Return how often monitors look which messages have been taken (s), by the time that a worker has (s)."""
    return min(max(timeout / 10, 0.1), 10.0)


@dataclass(frozen=True)
class Policy:
    """The hash ``Keys.policy``; times in seconds."""

    timeout: float
    """What a worker has for an attempt."""
    queue_timeout: float
    """After which time a message that no worker has taken is a dead letter; 0 for none."""
    expire: int
    """What a record lives."""
    attempts: int
    backoff: Backoff
    source: str
    pending: str
    out: str
    done: str
    accept_late: bool
    """Whether a message ends with an attempt before the one under way."""
    done_by: str
    """What plain text in ``done`` is: ``xid``, ``id`` or ``either``."""
    res: str
    """The list that workers push answers to; none if empty."""
    history: int
    """Most events to keep."""
    reply_expire: int
    reply_to: str
    """Where answers go whose request does not say; none if empty."""
    reply_lists: tuple[str, ...]
    """The lists that a request may name for its answer: names, and patterns of names."""

    @classmethod
    async def read(cls, redis: "Redis", keys: Keys) -> Self | None:
        """None for a namespace that tracks nothing, or says it in words that cannot be read."""
        found = await redis.hgetall(encoded(keys.policy))
        return cls.understood(keys, decoded_fields(found))

    @classmethod
    def understood(cls, keys: Keys, found: Mapping[str, str]) -> Self | None:
        """Return the policy of the fields of that hash; None if they cannot be read."""
        try:
            return cls(
                timeout=float(found["messageTimeout"]),
                queue_timeout=float(found.get("queueTimeout", 0)),
                expire=int(found["messageExpire"]),
                attempts=int(found["attempts"]),
                backoff=Backoff.read(found["backoff"]),
                source=found["source"],
                pending=found.get("pending", ""),
                out=found["out"],
                done=found["done"],
                accept_late=found.get("acceptLate") == "1",
                done_by=found.get("doneBy", "either"),
                res=found.get("res", ""),
                history=int(found["eventCapacity"]),
                reply_expire=int(found["replyExpire"]),
                reply_to=found.get("replyTo", ""),
                reply_lists=_reply_lists(keys, found.get("replyLists")),
            )
        except (KeyError, ValueError, TypeError):
            return None


def _reply_lists(keys: Keys, written: str | None) -> tuple[str, ...]:
    """Return the default if an mdispatch of before has written the policy."""
    return (keys.replies,) if written is None else tuple(map(str, json.loads(written)))
