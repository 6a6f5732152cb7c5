"""penstock audit: the invariant of a hop, and every way to violate it."""

import asyncio
import signal
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.accounting.audit import Audit, audit
from penstock.base.keys import Keys
from tests.cli.given import settle
from tests.support.commandline import AWKWARD, Result, penstock, running


async def test_a_hop_that_conserves_is_shown_list_by_list(redis: Redis, redis_url: str) -> None:
    await settle(redis, messages=10, dead=2, dropped=3)
    await redis.zadd("demo:owners", {"4": 1})
    await redis.rpush("pending:4", "a", "b")
    await redis.rpush("pending", "c")
    result = await penstock("audit", "demo", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in result.text.splitlines() if "out" in line]
    assert rows == [["out0", "13", "10", "0", "0", "3", "0"], ["out1", "13", "5", "2", "3", "3", "0"]]
    assert "conserved: 10 messages settled, 3 pending" in result.text


async def test_json_says_the_same(redis: Redis, redis_url: str) -> None:
    await settle(redis, messages=10, dead=2)
    result = await penstock("audit", "demo", "--json", redis=redis_url)
    assert result.status == 0
    assert result.json == {
        "namespace": "demo",
        "messages": 10,
        "pending": {"pending": 0},
        "legs": [
            {"list": "out0", "taken": 10, "delivered": 10, "dead": 0, "dropped": 0, "pending": 0, "missing": 0},
            {"list": "out1", "taken": 10, "delivered": 8, "dead": 2, "dropped": 0, "pending": 0, "missing": 0},
        ],
        "problems": [],
        "notes": [],
        "holds": True,
    }


async def test_what_dead_consumers_hold_and_nobody_takes_over_is_named(redis: Redis, redis_url: str) -> None:
    await settle(redis)
    await redis.hset("demo:changes", "old", "moved out0")
    now, _ = await redis.time()
    for name, end in (("old", now - 60), ("out0", now - 60), ("out1", now + 60)):
        await redis.zadd(f"{name}:consumers", {"one": (now - 60) * 1_000_000, "two": end * 1_000_000})
        await redis.rpush(f"{name}:consumer:one", "a", "b")
    result = await penstock("audit", "demo", "--json", redis=redis_url)
    words = "2 messages in hand of consumers of penstock.lists that have died: the next one that takes from"
    assert (result.status, result.json["notes"]) == (
        0,
        [f"{name}: {words} {name} takes them over" for name in ("out0", "old")],
    )


async def test_what_may_not_be_read_of_dead_consumers_is_said(redis: Redis, redis_url: str) -> None:
    await settle(redis)
    now, _ = await redis.time()
    await redis.zadd("out1:consumers", {"one": (now - 60) * 1_000_000})
    await redis.rpush("out1:consumer:one", "a")
    keys = "~demo:*", "~in", "~pending*", "~out0*", "~out1", "~out1:consumers"
    await redis.execute_command("ACL", "SETUSER", "looks", "reset", "on", "nopass", "+@all", *keys)
    url = redis_url.replace("//", "//looks:none@")
    result = await penstock("audit", "demo", "--json", redis=url)
    why = "this user may not read out1:consumers and out1:consumer:*"
    words = f"out1: not known what dead consumers of penstock.lists have in hand: {why}"
    assert result.error == ""
    assert (result.status, result.json["notes"]) == (0, [words])
    await redis.execute_command("ACL", "SETUSER", "looks", "resetkeys", *keys[:-1])
    assert (await penstock("audit", "demo", "--json", redis=url)).json["notes"] == [words]
    await redis.execute_command("ACL", "DELUSER", "looks")


async def test_replicas_that_take_turns_by_a_lease_have_one_pending_list(redis: Redis, redis_url: str) -> None:
    await settle(redis, messages=10)
    await redis.zadd("demo:owners", {"4": 1, "5": 1})
    await redis.hset("demo:lease", mapping={"owner": "4", "token": 4, "expires": 0})
    await redis.rpush("pending", "a", "b")
    await redis.rpush("pending:5", "left when it had a list of its own")
    result = await penstock("audit", "demo", "--json", redis=redis_url)
    assert result.json["pending"] == {"pending": 2, "pending:5": 1}


async def found(redis_url: str) -> Result:
    return await penstock("audit", "demo", redis=redis_url)


async def test_one_message_taken_off_a_counter_is_found(redis: Redis, redis_url: str) -> None:
    await settle(redis)
    await redis.hincrby("demo:metrics:delivered", "out1", -1)
    result = await found(redis_url)
    assert result.status == 1
    assert result.error.splitlines() == [
        "penstock: out1: taken 10 is not delivered 9 + dead 0 + dropped 0 + pending 0: 1 missing",
        "penstock: delivered: count is 20, its lists add up to 19",
    ]


@pytest.mark.parametrize("counter", ["taken", "delivered", "dead", "dropped"])
@pytest.mark.parametrize("field", ["count", "out0"])
@pytest.mark.parametrize("by", [1, -1])
async def test_any_counter_that_was_tampered_with_is_found(
    redis: Redis, redis_url: str, counter: str, field: str, by: int
) -> None:
    await settle(redis, dead=1, dropped=1)
    await redis.hincrby(f"demo:metrics:{counter}", field, by)
    result = await penstock("audit", "demo", "--json", redis=redis_url)
    if (counter, field, by) == ("taken", "count", 1):
        assert result.status == 0, "a list that was added later took less than the service"
    else:
        assert (result.status, result.json["holds"]) == (1, False)
        assert result.json["problems"]


async def test_a_pending_list_of_another_type_is_found(redis: Redis, redis_url: str) -> None:
    await settle(redis)
    await redis.set("pending", "text")
    result = await found(redis_url)
    assert result.status == 1
    assert "pending holds a" in result.error


async def test_a_counter_of_another_type_is_one_clear_line(redis: Redis, redis_url: str) -> None:
    await settle(redis)
    await redis.delete("demo:metrics:dead")
    await redis.set("demo:metrics:dead", "text")
    result = await found(redis_url)
    assert (result.status, result.out) == (1, b"")
    assert "holds a string, expected a hash" in result.error
    assert "demo:metrics:dead" in result.error


async def test_a_service_that_has_taken_nothing_yet_conserves(redis: Redis, redis_url: str) -> None:
    roles: dict[Any, Any] = {"in": "in", "pending": "pending", "out0": "out"}
    await redis.hset("demo:lists", mapping=roles)
    result = await penstock("audit", "demo", "--json", redis=redis_url)
    assert result.status == 0
    assert [leg["list"] for leg in result.json["legs"]] == ["out0"]


async def test_a_list_that_is_fed_no_more_is_still_audited(redis: Redis, redis_url: str) -> None:
    await settle(redis)
    await redis.hdel("demo:lists", "out1")
    await redis.hincrby("demo:metrics:delivered", "out1", -1)
    assert "out1: taken 10" in (await found(redis_url)).error


async def test_an_unknown_namespace_is_a_failure(redis: Redis, redis_url: str) -> None:
    result = await penstock("audit", "demo", redis=redis_url)
    assert (result.status, result.out) == (1, b"")
    assert "no service has registered in the namespace demo; namespaces on this server: none" in result.error


@pytest.mark.parametrize("namespace", AWKWARD)
async def test_a_namespace_may_have_any_name(redis: Redis, redis_url: str, namespace: str) -> None:
    await settle(redis, namespace)
    result = await penstock("audit", namespace, "--json", redis=redis_url)
    assert (result.status, result.json["messages"]) == (0, 10)


async def test_everything_is_read_at_one_instant(redis: Redis) -> None:
    """The invariant holds in every snapshot while instances come and go and messages move between lists."""
    enough = asyncio.Event()  # Python 3.11 may lose a cancellation while the client sends
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keep_moving(redis, enough))
        audits: list[Audit] = []
        while len(audits) < 200 or len({result.messages for result in audits}) < 20:
            audits += filter(None, [await audit(redis, Keys("demo"))])
        enough.set()
    assert all(result.holds for result in audits)
    assert {sum(result.pending.values()) for result in audits} == {3}, "never seen between two lists"


async def keep_moving(redis: Redis, enough: asyncio.Event) -> None:
    number = 0
    await redis.rpush("pending:0", "a", "b", "c")
    await redis.zadd("demo:owners", {"0": 0})
    roles: dict[Any, Any] = {"pending": "pending"}
    await redis.hset("demo:lists", mapping=roles)
    while not enough.is_set():
        await settle(redis, messages=3)
        async with redis.pipeline(transaction=True) as transaction:
            transaction.rename(f"pending:{number}", f"pending:{number + 1}")
            transaction.zrem("demo:owners", str(number))
            transaction.zadd("demo:owners", {str(number + 1): 0})
            await transaction.execute()
        number += 1
        await asyncio.sleep(0.005 if number % 10 else 0.1)  # an audit is repeated if owners changed during it


async def test_watching_ends_with_1_if_the_sum_ever_failed(redis: Redis, redis_url: str) -> None:
    await settle(redis)
    await redis.hincrby("demo:metrics:taken", "out0", -1)
    async with running("audit", "demo", "--watch", redis=redis_url) as process:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        assert line == b"demo: 10 settled, 0 pending: NOT CONSERVED, 1 problem\n"
        await redis.hincrby("demo:metrics:taken", "out0", 1)
        assert b"conserved" in await asyncio.wait_for(process.stdout.readline(), 60)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 60) == 1
