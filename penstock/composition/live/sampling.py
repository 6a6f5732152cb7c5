"""Sampling of one server: lengths, ages and counters, in a constant number of round trips."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.base.encoding import decoded, encoded
from penstock.base.keys import Keys
from penstock.base.shape import Place
from penstock.base.urls import server_of
from penstock.composition.live.samples import InstanceCounts, Sample, ServiceCounts
from penstock.composition.model import Composition, Part
from penstock.core.metrics import parse_metric
from penstock.inspect import pending
from penstock.inspect.namespace import is_late
from penstock.tracking.dead_letters import Letter

Call = tuple[Any, ...]
CALLS_PER_SERVICE: Final = 3


async def sample_server(redis: "Redis", composition: Composition, server: str, found: Sample) -> None:
    """Add the lists and services on ``server`` to ``found``. Raise ``RedisError`` if it does not answer."""
    ends = [(end.place, end) for _, end in composition.ends("reads", "writes") if end.place.server == server]
    places = dict(ends)
    parts = [part for part in composition.parts if part.namespace]
    services = {str(part.namespace): part for part in parts if part.server == server}
    registered = list(dict.fromkeys(str(part.namespace) for part in parts if registry_of(part) == server))
    calls: list[Call] = [("TIME",)]
    for place, end in places.items():
        calls += _of_list(place, end.kind == "stream", end.role == "dead")
    for name in services:
        calls += _of_service(Keys(name))
    calls += [("LRANGE", Keys(name).ids, 0, -1) for name in registered]
    (seconds, micros), *replies = await _replies_to(redis, calls)
    for place, (length, oldest) in zip(places, _pairs(replies[: 2 * len(places)]), strict=True):
        if isinstance(length, int):
            found.lengths[place] = length
            if (at := _timestamp(oldest)) is not None:
                found.oldest[place] = max(0.0, seconds + micros / 1e6 - at)
    counted = replies[2 * len(places) :]
    read = [(name, counted[place * CALLS_PER_SERVICE :][:CALLS_PER_SERVICE]) for place, name in enumerate(services)]
    await _add_services(redis, read, found)
    await _add_instances(redis, registered, replies[len(replies) - len(registered) :], found, seconds)


def registry_of(part: Part) -> str:
    """Return the server of a service's registrations."""
    return server_of(part.urls[1]) if part.urls[1] else part.server


async def _add_services(redis: "Redis", read: Sequence[tuple[str, Sequence[Any]]], found: Sample) -> None:
    """Add how many messages of each service are pending, taken and delivered."""
    names = [Keys(name) for name, _ in read]
    found_lists, _ = await pending.read_pending(redis, names, lenient=True)
    for keys, (_, (taken, delivered, retried)) in zip(names, read, strict=True):
        lists = found_lists[keys.namespace].all
        settled = _number(taken) - sum(each.counted + each.missing for each in lists)
        counts = {decoded(name): _number(value) for name, value in _hash(delivered).items()}
        outs = [name for name in counts if name != "count"]
        if len(outs) == 1:
            counts[outs[0]] += _number(retried)
        found.services[keys.namespace] = ServiceCounts(sum(each.messages for each in lists), settled, counts)


async def _add_instances(
    redis: "Redis", names: Sequence[str], listed: Sequence[Any], found: Sample, now: float
) -> None:
    """Add how many instances are alive, and what they wait for."""
    calls = [
        [("HMGET", Keys(name).instance(decoded(id)), "host", "renewed", "renew", "waiting") for id in _list(ids)]
        for name, ids in zip(names, listed, strict=True)
    ]
    replies = iter(await _replies_to(redis, [call for each in calls for call in each]))
    for name, own in zip(names, calls, strict=True):
        answers = [answer for answer in (next(replies) for _ in own) if isinstance(answer, list) and answer[0]]
        on_time = [answer for answer in answers if not is_late(*_heartbeat(answer, now))]
        waits = sorted({decoded(answer[-1]) for answer in on_time if answer[-1]})
        found.instances[name] = InstanceCounts(len(on_time), len(answers) - len(on_time), waits)


def _heartbeat(fields: Sequence[Any], now: float) -> tuple[float | None, float | None]:
    """Return the age of an instance's last heartbeat and the heartbeat interval (s)."""
    _, renewed, renew, _ = fields
    at = parse_metric(renewed)
    return None if at is None else now - at, parse_metric(renew)


def _of_list(place: Place, is_stream: bool, is_dead: bool) -> list[Call]:
    if is_stream:
        return [("XLEN", place.key), ("XRANGE", place.key, "-", "+", "COUNT", 1)]
    return [("LLEN", place.key), ("LINDEX", place.key, -1) if is_dead else ("ECHO", "")]


def _of_service(keys: Keys) -> list[Call]:
    taken, delivered, retry = map(keys.metric, ("taken", "delivered", "retry"))
    return [
        ("HGET", taken, "count"),
        ("HGETALL", delivered),
        ("HGET", retry, "count"),
    ]


async def _replies_to(redis: "Redis", calls: Sequence[Call]) -> list[Any]:
    """Return the replies, errors of single commands included. Raise any other error."""
    if not calls:
        return []
    async with redis.pipeline(transaction=False) as wire:
        for verb, *words in calls:
            wire.execute_command(verb, *(encoded(word) if isinstance(word, str) else word for word in words))
        replies: list[Any] = await wire.execute(raise_on_error=False)
    if lost := next(
        (one for one in replies if isinstance(one, Exception) and not isinstance(one, ResponseError)), None
    ):
        raise lost
    return replies


def _pairs(replies: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(replies[::2], replies[1::2], strict=True)


def _timestamp(reply: Any) -> float | None:
    """Return when the oldest entry was written (s since the epoch); None if it has no timestamp."""
    if isinstance(reply, bytes):
        return Letter(reply).at if reply else None
    if isinstance(reply, list) and reply:
        return int(reply[0][0].partition(b"-")[0]) / 1000
    return None


def _list(reply: Any) -> list[bytes]:
    return [] if isinstance(reply, ResponseError) else list(reply)


def _hash(reply: Any) -> dict[bytes, bytes]:
    return {} if isinstance(reply, ResponseError) else dict(reply)


def _number(reply: Any) -> int:
    return int(parse_metric(reply) or 0) if isinstance(reply, bytes) else 0
