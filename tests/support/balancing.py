"""The script of mbalance, called without its service, and what it has left."""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis

from common.in_flight import counters
from penstock.base.keys import Keys
from penstock.core.script import Script
from services.mbalance.settings import Settings
from services.mbalance.workers import Workers
from tests.support.harness import ROOT

KEYS: Final = Keys("demo")
SOURCE: Final = "in"
PENDING: Final = "pending"
_move: Final = Script.read(ROOT / "services" / "mbalance" / "lua" / "move.lua")
METRICS: Final = ("settled", "delivered", "rebalanced")


class Moved(NamedTuple):
    """What the script returns."""

    messages: int
    waiting: int
    largest: int
    alive: int


def settings(outs: Sequence[str], **more: Any) -> Settings:
    least = {"redis": "redis://here", "redis_namespace": KEYS.namespace, "in_": SOURCE, "pending": PENDING}
    return Settings(**{**least, "out": [*outs], **more})


async def move(redis: "Redis", outs: Sequence[str], *, lease: str | None = None, token: int = 0, **more: Any) -> Moved:
    """Call the script once, as a service with these lists and settings would."""
    given = settings(outs, **more)
    workers = Workers(given)
    await workers.refresh(redis)
    found = await _move(
        redis,
        pending=PENDING,
        source=SOURCE,
        rates=KEYS.rates,
        lease=lease,
        token=token,
        batch=given.batch,
        bytes=given.batch_bytes,
        policy=given.policy,
        field=given.field or "",
        forget=given.rate_expire,
        inhand=int(bool(given.in_hand)),
        unseen=1,
        largest=0,
        **workers.named,
        **counters(KEYS),
        **{name: KEYS.metric(name) for name in METRICS},
    )
    return Moved(*found)


async def contents(redis: Any, lists: Iterable[str]) -> list[list[bytes]]:
    """Return the messages of each list, oldest first."""
    return [(await redis.lrange(name, 0, -1))[::-1] for name in lists]


async def push(redis: "Redis", name: str, messages: Iterable[bytes | str | int]) -> None:
    if several := [*messages]:
        await redis.lpush(name, *several)


async def counted(redis: Any, metric: str) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in (await redis.hgetall(KEYS.metric(metric))).items()}


def state(seconds: float, items: int, since: float, seen: float, length: int, turn: int = 0, share: float = 0) -> str:
    """Return what the hash of the rates has for a list."""
    return f"{seconds:.9g} {items} {since:.6f} {seen:.6f} {length} {turn} {share:.9g}"


def state_of(text: bytes | str | None) -> dict[str, float]:
    names = ("seconds", "items", "since", "seen", "length", "turn", "share")
    assert text is not None
    return dict(zip(names, map(float, text.split()), strict=True))
