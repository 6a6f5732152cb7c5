"""Atomic reads and writes by script: replies equal to those of a pipeline, also on a full server."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.base.errors import TooMany, WrongType
from penstock.core.atomic import MAX_COMMANDS, AtomicRead, AtomicWrites
from penstock.core.connection import connect
from penstock.testing.server import EmbeddedServer
from tests.support.servers import KINDS, started

Fill = Callable[[], Awaitable[object]]


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    with started(request.param) as server:
        yield server


async def fill_keys(redis: Redis) -> None:
    await redis.hset("hash", mapping={"a": "1", b"\xff\x00": "two words"})
    await redis.rpush("list", "x", "", "y", "x")
    await redis.zadd("zset", {"m": 1.5, "n": 1e17, "o": 2})
    await redis.set("text", "t")
    await redis.xadd("stream", {"first": "1"}, id="5-1")
    await redis.xadd("stream", {"first": "2"}, id="6-1")


def snapshot_of(client: Redis) -> Any:
    """Return an ``AtomicRead`` untyped, to chain commands on."""
    return AtomicRead(client)


def reads(commands: Any) -> None:
    """Queue every kind of read that our tools send, with existing and missing keys."""
    for key in ("hash", "none"):
        commands.hgetall(key).hlen(key).hget(key, "a").hmget(key, ["a", "b"])
    for key in ("list", "none"):
        commands.llen(key).lrange(key, 0, -1).lrange(key, -2, -1).lpos(key, "x", rank=-1, maxlen=3)
    for key in ("zset", "none"):
        commands.zcard(key).zscore(key, "m").zscore(key, "q").zmscore(key, ["m", "q", "n"]).zrange(key, 0, -1)
        commands.zrange(key, 0, 0, withscores=True)
    for key in ("stream", "none"):
        commands.xlen(key).xrange(key, count=1).xrevrange(key, count=1)
    for name in ("text", "zset", b"\xff\r\n"):
        commands.type(name).exists(name).ttl(name)
    commands.get("text").get("none")


async def test_replies_are_those_of_a_pipeline(redis: Redis, redis_url: str) -> None:
    await fill_keys(redis)
    async with (
        connect(redis_url) as client,
        client.pipeline(transaction=True) as pipeline,
        AtomicRead(client) as snapshot,
    ):
        reads(pipeline)
        reads(snapshot)
        expected: list[Any] = await pipeline.execute()
        found = await snapshot.execute()
    assert len(found) > 40
    assert found == expected
    assert list(map(type, found)) == list(map(type, expected))


async def test_it_reads_on_a_full_server(redis: Redis, redis_url: str, fill: Fill) -> None:
    await fill_keys(redis)
    await fill()
    async with connect(redis_url) as client:
        snapshot = AtomicRead(client)
        reads(snapshot)
        assert len(await snapshot.execute()) > 40


async def test_all_of_it_is_read_at_one_instant(redis: Redis, redis_url: str) -> None:
    """Increment two counters together, again and again: they are equal in every snapshot."""
    moves, over = 0, asyncio.Event()

    async def move(client: Any) -> int:
        count = 0
        while not over.is_set():
            await client.pipeline(transaction=True).hincrby("one", "count", 1).hincrby("two", "count", 1).execute()
            count += 1
        return count

    async with connect(redis_url) as mover, connect(redis_url) as client:
        task = asyncio.create_task(move(mover))
        for _ in range(300):
            one, *_, two = await snapshot_of(client).hget("one", "count").time().hget("two", "count").execute()
            assert one == two
        over.set()
        moves = await task
    assert moves > 20


@pytest.mark.parametrize(
    ("read", "key", "problem"),
    [
        ("HGETALL", "list", "list holds a list, expected a hash"),
        ("LLEN", "zset", "zset holds a zset, expected a list"),
        ("ZCARD", "hash", "hash holds a hash, expected a zset"),
        ("XLEN", "text", "text holds a string, expected a stream"),
        ("GET", "stream", "stream holds a stream, expected a string"),
    ],
)
async def test_a_key_of_another_type_is_named(redis: Redis, redis_url: str, read: str, key: str, problem: str) -> None:
    await fill_keys(redis)
    async with connect(redis_url) as client:
        snapshot = snapshot_of(client)
        snapshot.time().execute_command(read, key)
        snapshot.llen("list")
        _, error, length = await snapshot.execute(raise_on_error=False)
        assert (type(error), str(error), length) == (WrongType, problem, 4)
        snapshot.time().execute_command(read, key)
        with pytest.raises(WrongType, match=f"^{problem}$"):
            await snapshot.execute()


async def test_a_snapshot_is_bounded(redis: Redis, redis_url: str) -> None:
    """A read of the maximal size does not block the server for long; a larger one is refused before it is sent."""
    async with connect(redis_url) as client:
        snapshot = AtomicRead(client)
        for number in range(MAX_COMMANDS):
            snapshot.llen(f"list {number}")
        await redis.config_set("slowlog-log-slower-than", 100_000)
        await redis.slowlog_reset()
        assert await snapshot.execute() == [0] * MAX_COMMANDS
        assert await redis.slowlog_get() == []
        for number in range(MAX_COMMANDS + 1):
            snapshot.llen(f"list {number}")
        with pytest.raises(
            TooMany, match=f"^{MAX_COMMANDS + 1:,} commands at one instant .*: at most {MAX_COMMANDS:,}$"
        ):
            await snapshot.execute()


async def test_an_empty_read_sends_nothing() -> None:
    async with connect("redis://127.0.0.1:1") as nowhere:
        assert await AtomicRead(nowhere).execute() == []


async def test_a_user_who_may_write_no_key_reads(redis: Redis, redis_url: str) -> None:
    """Redis 7.0 and newer: EVAL asks for the right to write its keys, EVAL_RO does not."""
    try:
        await redis.execute_command(
            "ACL", "SETUSER", "reader", "on", ">pw", "%R~*", "+@read", "+evalsha_ro", "+eval_ro"
        )
    except ResponseError:
        pytest.skip("Redis 6.2 has no users who may only read")
    await fill_keys(redis)
    try:
        async with connect(redis_url) as client:
            await client.execute_command("AUTH", "reader", "pw")
            assert await snapshot_of(client).llen("list").execute() == [4]
    finally:
        await redis.execute_command("ACL", "DELUSER", "reader")


async def test_a_user_without_eval_ro_reads_by_eval(redis: Redis, redis_url: str) -> None:
    await redis.execute_command("ACL", "SETUSER", "old", "on", ">pw", "~*", "+@read", "+evalsha", "+eval")
    await fill_keys(redis)
    try:
        async with connect(redis_url) as client:
            await client.execute_command("AUTH", "old", "pw")
            assert await snapshot_of(client).llen("list").execute() == [4]
            assert await snapshot_of(client).llen("list").execute() == [4]
    finally:
        await redis.execute_command("ACL", "DELUSER", "old")


async def test_missing_rights_are_named(redis: Redis, redis_url: str) -> None:
    await redis.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~list", "+evalsha", "+eval", "+llen", "+acl")
    try:
        async with connect(redis_url) as client:
            await client.execute_command("AUTH", "poor", "pw")
            with pytest.raises(ResponseError, match="HGETALL list: "):
                await snapshot_of(client).hgetall("list").execute()
    finally:
        await redis.execute_command("ACL", "DELUSER", "poor")


async def test_writes_are_done_on_a_full_server_at_one_instant(redis: Redis, redis_url: str, fill: Fill) -> None:
    await redis.set("text", "t")
    await fill()
    async with connect(redis_url) as client:
        writes: Any = AtomicWrites(client)
        writes.hset("hash", mapping={"a": 1, "b": 2}).hincrby("hash", "a", 2).expire("hash", 90).zadd("zset", {"m": 3})
        assert await writes.execute() == [2, 3, True, 1]
        writes.hset("hash", "c", 1).llen("text").hset("hash", "d", 1)
        with pytest.raises(WrongType, match=r"^text holds a string, expected a list$"):
            await writes.execute()
    assert await redis.hgetall("hash") == {b"a": b"3", b"b": b"2", b"c": b"1", b"d": b"1"}
