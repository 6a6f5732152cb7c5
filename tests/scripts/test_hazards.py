"""penstock audit and lint --live report lists with a TTL, and servers that may evict lists."""

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock
from tests.support.tracked import policy

TRACKED = {"in": "in", "pending": "pending", "out": "out", "demo:done": "done", "demo:dead": "dead", "res": "answers"}


@pytest.fixture
async def hop(redis: Redis) -> None:
    """Write an mdispatch with one message in each of its lists."""
    keys = Keys("demo")
    roles: dict[Any, Any] = TRACKED
    await policy(redis)
    await redis.hset(keys.lists, mapping=roles)
    await redis.zadd(keys.owners, {"4": 1})
    for name in (*TRACKED, "pending:4"):
        await redis.lpush(name, "m")
    await redis.hset(keys.metric("taken"), mapping={"count": 0})


async def test_lists_without_a_ttl_are_no_problem(redis: Redis, redis_url: str, hop: None) -> None:
    result = await penstock("audit", "demo", redis=redis_url)
    assert (result.status, result.error) == (0, "")


@pytest.mark.parametrize("name", [*TRACKED, "pending:4"])
async def test_audit_fails_for_any_list_with_a_ttl_and_says_how_to_end_it(
    redis: Redis, redis_url: str, hop: None, name: str
) -> None:
    await redis.expire(name, 600)
    result = await penstock("audit", "demo", redis=redis_url)
    assert result.status == 1
    assert f"'{name}' has a TTL and is gone in " in " ".join(result.error.split())
    assert f" s with its 1 message; expected none: PERSIST {name}" in " ".join(result.error.split())
    assert "conserved" not in result.text
    everything = await penstock("audit", "--all", redis=redis_url)
    assert (everything.status, "NOT CONSERVED" in everything.text) == (1, True)
    output = (await penstock("audit", "demo", "--json", redis=redis_url)).json
    assert (output["holds"], len(output["problems"])) == (False, 1)


async def test_a_record_of_a_message_may_expire(redis: Redis, redis_url: str, hop: None) -> None:
    await redis.hset("demo:message:1", "xid", "a")
    await redis.expire("demo:message:1", 600)
    assert (await penstock("audit", "demo", redis=redis_url)).status == 0


@pytest.mark.parametrize(
    ("eviction", "most", "status"),
    [
        ("allkeys-lru", "100mb", 1),
        ("allkeys-random", "100mb", 1),
        ("allkeys-lru", "0", 0),
        ("volatile-lru", "100mb", 0),
        ("noeviction", "100mb", 0),
    ],
)
async def test_audit_fails_where_the_server_may_evict_any_list(
    redis: Redis, redis_url: str, hop: None, eviction: str, most: str, status: int
) -> None:
    await redis.config_set("maxmemory-policy", eviction)
    await redis.config_set("maxmemory", most)
    try:
        result = await penstock("audit", "demo", redis=redis_url)
    finally:
        await redis.config_set("maxmemory", "0")
        await redis.config_set("maxmemory-policy", "noeviction")
    assert result.status == status
    if status:
        said = " ".join(result.error.split())
        assert f"the server deletes any key once it uses 104,857,600 bytes (maxmemory-policy {eviction})" in said
        assert all(repr(name) in said for name in (*TRACKED, "pending:4"))


async def test_lint_live_names_every_list_of_a_composition_that_has_a_ttl(tmp_path: Path) -> None:
    (tmp_path / "mpush.yaml").write_text(
        "redisNamespace: fan\nin: in\npending: pending\nout: [a, b]\nmaxLength: 9\noverflow: dead\n"
    )
    (tmp_path / "composition.yaml").write_text("external: {writes: in, reads: [a, b]}\n")
    with EmbeddedServer(aof=True) as server:
        redis = Redis(port=server.port)
        roles: dict[Any, Any] = {"in": "in", "pending": "pending", "a": "out", "b": "out", "fan:dead": "dead"}
        await redis.hset("fan:lists", mapping=roles)
        await redis.zadd("fan:owners", {"4": 1})
        for name in ("in", "pending:4", "b", "fan:dead", "clients"):
            await redis.lpush(name, "m")
            await redis.expire(name, 600)
        await redis.aclose()
        result = await penstock("lint", tmp_path, "--live", redis=server.url)
    found = sorted(line.replace(f"{tmp_path}/", "") for line in result.text.splitlines() if "[expires]" in line)
    assert (result.status, result.error) == (1, "")
    assert [line.partition(" has a TTL")[0] for line in found] == [
        "mpush.yaml:1: redisNamespace: 'pending:4'",
        "mpush.yaml:2: in: 'in'",
        "mpush.yaml:4: out: 'b'",
        "mpush.yaml:6: overflow: 'fan:dead'",
    ]
