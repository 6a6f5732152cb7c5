"""The state of vpush's link to its target server, from what vpush recorded last and what waits now."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from penstock.base.encoding import decoded
from penstock.base.keys import Keys
from penstock.core.connection import server_time
from penstock.core.metrics import parse_metric
from penstock.inspect.namespace import LeaseState, ServiceKey, read_hash


@dataclass(frozen=True)
class LinkState:
    """Times are seconds by the server's clock; None if unknown."""

    alive: bool
    """Whether a vpush is active; otherwise nobody watches the link."""
    up: bool
    """Whether a vpush is active and the target answered the last batch. An idle vpush does not contact the target."""
    changed_ago: float | None
    """Time since the link went up or down."""
    reason: str
    """Why the link is down."""
    waiting: int | None
    """Messages in ``in`` and ``pending``."""
    oldest: float | None
    """How long the oldest of them has waited: at least, or at most if no vpush is alive."""
    round_trip: float | None
    """Round-trip time of the last batch."""


async def read_link(
    redis: "Redis", keys: Keys, lists: Iterable[ServiceKey], lease: LeaseState | None
) -> LinkState | None:
    """Return the link of the namespace that has these ``lists`` and this ``lease``; None if no vpush ever worked."""
    waiting = [one.length for one in lists if one.role in ("in", "pending") and one.type in ("list", "none")]
    return link_state(
        await read_hash(redis, keys.link),
        alive=lease is not None and lease.expires_in > 0,
        waiting=sum(waiting) if waiting else None,
        now=await server_time(redis),
    )


def link_state(noted: Mapping[Any, Any], alive: bool, waiting: int | None, now: float) -> LinkState | None:
    """Return the link from the hash ``noted`` that vpush keeps; None if it is empty: no vpush ever worked."""
    if not noted:
        return None
    since, round_trip = parse_metric(noted.get(b"since")), parse_metric(noted.get(b"rtt"))
    return LinkState(
        alive=alive,
        up=alive and noted.get(b"state") == b"up",
        changed_ago=None if since is None else max(0.0, now - since),
        reason=decoded(noted.get(b"reason", b"")),
        waiting=waiting,
        oldest=_oldest(noted, alive, waiting, now),
        round_trip=round_trip,
    )


def _oldest(noted: Mapping[Any, Any], alive: bool, waiting: int | None, now: float) -> float | None:
    """Return the age of the oldest message. What an idle vpush has not recorded has just arrived.

    Without a vpush, it may have arrived just after the last record.
    """
    oldest, at = parse_metric(noted.get(b"oldest")), parse_metric(noted.get(b"at"))
    if waiting == 0:
        return 0.0
    if oldest is None or at is None or (alive and not parse_metric(noted.get(b"waiting"))):
        return oldest
    return oldest + max(0.0, now - at)
