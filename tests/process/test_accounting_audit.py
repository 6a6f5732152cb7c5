"""Counts of messages held in pending lists, and in lists that no instance adopts."""

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.accounting.audit import Audit, audit
from penstock.base.keys import Keys
from tests.support.commandline import penstock
from tests.support.harness import Service, eventually

KEYS = Keys("demo")
NAMES: dict[str, Any] = {"redis_namespace": "demo", "in_": "in", "pending": "pending", "out": ["a"], "pop_timeout": 5}
GONE = "messages were taken and not settled, and gone"


def service(directory: Path, url: str) -> Service:
    return Service("mpush", directory / "log", redis=url, service_expire=30, service_renew=5, **NAMES)


async def audited(redis: Redis) -> Audit:
    found = await audit(redis, KEYS)
    assert found
    return found


async def _llen_is(redis: Redis, name: str, length: int) -> bool:
    return bool(await redis.llen(name) == length)


async def test_deleted_held_counts_are_found(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    """Delete the pending list with its count in ``held``: nothing else would show the message."""
    with service(tmp_path, redis_url) as started:
        await eventually(lambda: redis.exists("demo:1"))
        await redis.lpush("in", "settled")
        await eventually(lambda: _llen_is(redis, "a", 1))
        await eventually(lambda: _waits(redis))
        await redis.delete("a")
        await redis.set("a", "in the way")
        await redis.lpush("in", "held")
        await eventually(lambda: redis.hexists(KEYS.held, "pending:1"))
        assert (await audited(redis)).problems == []
        started.kill()
    await redis.delete(KEYS.held, "pending:1")
    assert (await audited(redis)).problems == ["taken 2 is not settled 1 + held 0 + gone 0: 1 missing"]


async def _waits(redis: Redis) -> bool:
    return bool((await redis.info("clients"))["blocked_clients"])


async def test_the_audit_says_how_to_accept_a_loss(redis: Redis, redis_url: str) -> None:
    roles: dict[Any, Any] = {"in": "in", "pending": "pending", "a": "out"}
    await redis.hset(KEYS.lists, mapping=roles)
    await redis.hset(KEYS.metric("missing"), mapping={"count": 3, "pending:1": 3})
    result = await penstock("audit", "demo", redis=redis_url)
    assert result.status == 1
    assert f"pending:1: 3 {GONE}: somebody removed them, or the list expired" in result.error
    assert "HSET demo:accepted pending:1 3" in " ".join(result.error.split())
    await redis.hset(KEYS.accepted, "pending:1", 3)
    assert (await penstock("audit", "demo", redis=redis_url)).status == 0
    await redis.hincrby(KEYS.metric("missing"), "pending:1", 1)
    assert "pending:1: 1 message was taken" in (await penstock("audit", "demo", redis=redis_url)).error


@pytest.mark.parametrize("key", [KEYS.held, KEYS.accepted, KEYS.metric("missing")])
async def test_a_count_that_is_no_number_is_found(redis: Redis, key: str) -> None:
    roles: dict[Any, Any] = {"in": "in", "pending": "pending", "a": "out"}
    await redis.hset(KEYS.lists, mapping=roles)
    await redis.hset(key, "pending:1", "some")
    assert (await audited(redis)).problems == ["pending:1: counted as 'some', expected a whole number"]


async def stray(redis: Redis) -> None:
    roles: dict[Any, Any] = {"in": "in", "pending": "pending", "a": "out"}
    await redis.hset(KEYS.lists, mapping=roles)
    await redis.lpush("pending:7", "a", "b")


async def test_a_pending_list_that_nobody_will_adopt_is_found_and_can_be_repaired(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    await stray(redis)
    for which in (["demo"], ["--all"]):
        result = await penstock("audit", *which, redis=redis_url)
        words = " ".join(result.error.split())
        assert result.status == 1
        assert "pending:7: 2 messages that no instance takes over: 7 is not in demo:owners" in words
        assert "ZADD demo:owners 0 7" in words
    with service(tmp_path, redis_url) as started:
        await eventually(lambda: redis.exists("demo:1"))
        assert (await penstock("audit", "demo", redis=redis_url)).status == 1
        await redis.zadd(KEYS.owners, {"7": 0})
        assert (await penstock("audit", "demo", redis=redis_url)).status == 0
        await eventually(lambda: _llen_is(redis, "a", 2))
        assert started.stop() == 0
    assert (await penstock("audit", "demo", redis=redis_url)).status == 0


async def test_a_list_with_only_its_count_left_is_named_with_those_that_nobody_adopts(redis: Redis) -> None:
    await stray(redis)
    await redis.hset(KEYS.held, "pending:7", 2)
    await redis.hincrby(KEYS.metric("taken"), "count", 2)
    (problem,) = (await audited(redis)).problems
    assert problem.startswith("pending:7: 2 messages that no instance takes over")


async def test_messages_left_by_a_stopped_service_are_conserved_and_reported(redis: Redis, redis_url: str) -> None:
    await stray(redis)
    await redis.zadd(KEYS.owners, {"7": 1})
    result = await penstock("audit", "demo", redis=redis_url)
    assert result.status == 0
    assert "2 messages in pending lists of instances that are not registered on this server" in " ".join(
        result.text.split()
    )
    await redis.hset(KEYS.instance("7"), mapping={"host": "oak", "pid": 1})
    assert "not registered" not in (await penstock("audit", "demo", redis=redis_url)).text


@pytest.mark.parametrize("name", ["pending:x", "other:7", "pending:7:consumer:1"])
async def test_a_list_that_only_looks_like_one_is_none(redis: Redis, redis_url: str, name: str) -> None:
    await stray(redis)
    await redis.rename("pending:7", name)
    assert (await penstock("audit", "demo", redis=redis_url)).status == 0
