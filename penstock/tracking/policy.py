"""The tracking policy of a namespace, which its mdispatch publishes for monitors and tools."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from redis.asyncio import Redis

from penstock.base.encoding import decoded_fields, encoded
from penstock.base.keys import Keys
from penstock.core.backoff import Backoff


def untaken_check_interval(timeout: float) -> float:
    """Return how often (s) monitors check which messages workers have taken, for a ``timeout`` of an attempt (s)."""
    return min(max(timeout / 10, 0.1), 10.0)


@dataclass(frozen=True)
class Policy:
    """The hash ``Keys.policy``; times in seconds."""

    timeout: float
    """Time of a worker for one attempt."""
    queue_timeout: float
    """Time after which a message that no worker has taken becomes a dead letter; 0: never."""
    expire: int
    """Lifetime of a message's record."""
    attempts: int
    backoff: Backoff
    retry_budget: int | None
    """Maximum number of retries, in per cent of the requests; None: unlimited."""
    source: str
    pending: str
    out: str
    done: str
    accept_late: bool
    """Whether a ``done`` of an earlier attempt ends the message."""
    done_by: str
    """How to read plain text in ``done``: ``xid``, ``id`` or ``either``."""
    res: str
    """The list that workers push answers to; empty: none."""
    res_pending: str
    """From which mdispatch makes the names of its pending lists of answers; empty: none, or unknown."""
    history: int
    """Maximum number of events to keep."""
    reply_expire: int
    reply_to: str
    """Default list for answers, if a request names none; empty: none."""
    reply_lists: tuple[str, ...]
    """Names, and patterns of names, of the lists that a request may name for its answer."""

    @classmethod
    async def read(cls, redis: "Redis", keys: Keys) -> Self | None:
        """Return the policy of the namespace; None if it has none, or one that cannot be parsed."""
        found = await redis.hgetall(encoded(keys.policy))
        return cls.parse(keys, decoded_fields(found))

    @classmethod
    def parse(cls, keys: Keys, found: Mapping[str, str]) -> Self | None:
        """Parse the fields of that hash; return None if it is not a policy."""
        try:
            return cls(
                timeout=float(found["messageTimeout"]),
                queue_timeout=float(found.get("queueTimeout", 0)),
                expire=int(found["messageExpire"]),
                attempts=int(found["attempts"]),
                backoff=Backoff.parse(found["backoff"]),
                retry_budget=int(found["retryBudget"]) if "retryBudget" in found else None,
                source=found["source"],
                pending=found.get("pending", ""),
                out=found["out"],
                done=found["done"],
                accept_late=found.get("acceptLate") == "1",
                done_by=found.get("doneBy", "either"),
                res=found.get("res", ""),
                res_pending=found.get("resPending", ""),
                history=int(found["eventCapacity"]),
                reply_expire=int(found["replyExpire"]),
                reply_to=found.get("replyTo", ""),
                reply_lists=_reply_lists(keys, found.get("replyLists")),
            )
        except (KeyError, ValueError, TypeError):
            return None


def _reply_lists(keys: Keys, written: str | None) -> tuple[str, ...]:
    """Return the reply lists; the default if an older mdispatch wrote the policy."""
    return (keys.replies,) if written is None else tuple(map(str, json.loads(written)))
