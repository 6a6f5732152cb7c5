"""How vpush's link to its other server is: what vpush noted of it last, held against what waits now."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from penstock.encoding import decoded, encoded
from penstock.inspect.namespace import LeaseState, ServiceKey
from penstock.keys import Keys
from penstock.metrics import parse_metric


@dataclass(frozen=True)
class LinkState:
    """Times are seconds by the server's clock; None where they are not known."""

    alive: bool
    """Whether a vpush is active: else nobody looks at the link."""
    up: bool
    """Whether it is, and the other server answered the last batch. An idle vpush does not ask it."""
    changed_ago: float | None
    """How long it has been up or down."""
    reason: str
    """Why it is down."""
    waiting: int | None
    """Messages in ``in`` and ``pending``."""
    oldest: float | None
    """How long the oldest of them has waited at least; at most, where no vpush is alive."""
    round_trip: float | None
    """Of the last batch."""


async def read_link(
    redis: "Redis", keys: Keys, lists: Iterable[ServiceKey], lease: LeaseState | None
) -> LinkState | None:
    """What there is to say of the link of a namespace that has these ``lists`` and this ``lease``."""
    waiting = [one.length for one in lists if one.role in ("in", "pending") and one.type in ("list", "none")]
    seconds, micros = await redis.time()
    return link_state(
        await redis.hgetall(encoded(keys.link)),
        alive=lease is not None and lease.expires_in > 0,
        waiting=sum(waiting) if waiting else None,
        now=seconds + micros / 1e6,
    )


def link_state(noted: Mapping[Any, Any], alive: bool, waiting: int | None, now: float) -> LinkState | None:
    """What there is to say where vpush has ``noted`` that; None where no vpush ever worked."""
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
    """What an idle vpush has not noted yet has just come; without a vpush it may have come just after the note."""
    oldest, at = parse_metric(noted.get(b"oldest")), parse_metric(noted.get(b"at"))
    if waiting == 0:
        return 0.0
    if oldest is None or at is None or (alive and not parse_metric(noted.get(b"waiting"))):
        return oldest
    return oldest + max(0.0, now - at)
