"""penstock clear: delete all keys of a stopped namespace, and nothing else."""

from redis.asyncio import Redis

from penstock.base.encoding import decoded
from penstock.core.tokens import add_token
from tests.support.commandline import penstock
from tests.support.membership import register
from tests.support.tracked import KEYS, bury, in_flight, letter, policy


async def fill(redis: Redis) -> None:
    """Fill a stopped namespace with messages in all places, beside a namespace whose name begins with its name."""
    await register(redis, "demo", "3")
    await redis.delete("demo:3")
    await policy(redis)
    await in_flight(redis)
    await bury(redis, letter("4"))
    await redis.lpush("work pending:3", "a", "b")
    await redis.lpush("work in", "new")
    await redis.lpush("out0", "delivered")
    await redis.hset("demo:rollup:2026-11-21", "done", 1)
    await register(redis, "demo:other", "1")
    await redis.set("demo:free", "not ours")


async def test_it_says_what_would_go_and_needs_a_yes(redis: Redis, redis_url: str) -> None:
    await fill(redis)
    before = sorted(await redis.keys("*"))
    result = await penstock("clear", "demo", redis=redis_url)
    assert result.status == 2
    assert result.error == (
        "penstock: 11 keys of demo, with messages: 2 pending, 1 in flight, 1 dead "
        "would be deleted permanently: pass --yes to confirm\n"
    )
    assert sorted(await redis.keys("*")) == before


async def test_tokens_and_pages_go_with_the_lists_of_them(redis: Redis, redis_url: str) -> None:
    """A token that only its list forgot would still be accepted, and nobody could revoke it."""
    await register(redis, "demo", "3")
    await redis.delete("demo:3")
    await add_token(redis, KEYS, "ann", ("ask",), None)
    await redis.zadd(KEYS.pages, {KEYS.page("GET a/b"): 1})
    for key in (KEYS.page("GET a/b"), KEYS.page_tag("days"), KEYS.cancelled("1-a")):
        await redis.set(key, "x")
    assert (await penstock("clear", "demo", "--yes", redis=redis_url)).status == 0
    assert await redis.keys("*") == []


async def test_only_what_the_namespace_keeps_is_deleted(redis: Redis, redis_url: str) -> None:
    await fill(redis)
    result = await penstock("clear", "demo", "--yes", "--json", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert result.json == {"namespace": "demo", "keys": 11, "messages": {"pending": 2, "in flight": 1, "dead": 1}}
    left = {decoded(key) for key in await redis.keys("*")}
    other = {"demo:other:1", "demo:other:ids", "demo:other:owners", "demo:other:lists"}
    assert left == {"work in", "out0", "demo:free", *other}
    again = await penstock("clear", "demo", "--yes", redis=redis_url)
    assert again.status == 1
    assert "no service has registered in the namespace demo; namespaces on this server: demo:other" in again.error


async def test_a_namespace_with_a_live_instance_is_left_alone(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "3")
    await redis.lpush(KEYS.dead, "letter")
    result = await penstock("clear", "demo", "--yes", redis=redis_url)
    assert result.status == 1
    assert result.error == "penstock: demo has live instances (3): run penstock stop demo --all\n"
    assert await redis.exists(KEYS.dead, KEYS.instance("3")) == 2
