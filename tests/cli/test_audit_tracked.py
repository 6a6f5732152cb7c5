"""penstock audit of tracked messages: two invariants, and every way to violate them."""

import asyncio
import json

import pytest
from redis.asyncio import Redis

from penstock.accounting.tracked import audit_tracked
from tests.support.commandline import penstock
from tests.support.tracked import KEYS, count, delayed, in_flight, policy


@pytest.fixture
async def busy(redis: Redis) -> None:
    """Write twenty messages with every possible end."""
    await policy(redis)
    await count(
        redis,
        taken={"count": 20, "out": 20},
        registered=16,
        untracked=1,
        done={"count": 5, "sum": "1.25", "max": "0.5", "histo0": 5},
        done_late={"count": 4, "completed": 3},
        dead={"count": 7, "timeout": 2, "failed": 1, "poison": 1, "badRequest": 2, "badDone": 1},
        expired=1,
    )
    for id in ("7", "8"):
        await in_flight(redis, id)
    for id in ("9", "10"):
        await delayed(redis, id)
    await redis.zadd(KEYS.owners, {"2": 1})
    await redis.rpush("pending:2", "m", "n")
    await redis.rpush("pending:answers:2", "answers are no requests")


async def test_replicas_that_take_turns_by_a_lease_have_one_pending_list(
    redis: Redis, redis_url: str, busy: None
) -> None:
    await redis.zadd(KEYS.owners, {"3": 1})
    await redis.hset(KEYS.lease, mapping={"owner": "3", "token": 4, "expires": 0})
    result = await penstock("audit", "demo", "--json", redis=redis_url)
    assert result.json["pending"] == {"pending": 0, "pending:2": 2}


async def test_steps_are_a_table(redis: Redis, redis_url: str, busy: None) -> None:
    result = await penstock("audit", "demo", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    lines = result.text.splitlines()
    rows = [[cell.rstrip() for cell in line[2:-2].split(" │ ")] for line in lines if line.startswith("│")]
    assert [(step, count.strip()) for step, count in rows] == [
        ("taken", "22"),
        ("  registered", "16"),
        ("  untracked", "1"),
        ("  dead: poison", "1"),
        ("  dead: badRequest", "2"),
        ("  pending", "2"),
        ("registered", "16"),
        ("  done", "5"),
        ("  done late", "3"),
        ("  dead: timeout", "2"),
        ("  dead: failed", "1"),
        ("  expired", "1"),
        ("  in flight", "2"),
        ("  delayed", "2"),
    ]
    assert "conserved: 20 messages settled, 2 pending" in result.text


async def test_json_says_the_same(redis: Redis, redis_url: str, busy: None) -> None:
    output = (await penstock("audit", "demo", "--json", redis=redis_url)).json
    assert {name: output[name] for name in ("namespace", "messages", "pending", "problems", "holds")} == {
        "namespace": "demo",
        "messages": 20,
        "pending": {"pending": 0, "pending:2": 2},
        "problems": [],
        "holds": True,
    }
    taken, registered = output["laws"]
    assert (taken["whole"], taken["count"], taken["missing"], sum(taken["parts"].values())) == ("taken", 22, 0, 22)
    assert (registered["whole"], registered["parts"]["done late"]) == ("registered", 3)


@pytest.mark.parametrize(
    ("counter", "field", "by", "problem"),
    [
        ("taken", "count", 1, "taken 23 is not registered 16 + untracked 1 + dead: poison 1 + dead: badRequest 2 + "
         "pending 2: 1 missing"),
        ("untracked", "count", 2, "taken 22 is not registered 16 + untracked 3 + dead: poison 1 + dead: badRequest 2 + "
         "pending 2: 2 too many"),
        ("done", "count", -1, "registered 16 is not done 4 + done late 3 + dead: timeout 2 + dead: failed 1 + "
         "expired 1 + in flight 2 + delayed 2: 1 missing"),
        ("done:late", "completed", 1, "registered 16 is not done 5 + done late 4 + dead: timeout 2 + dead: failed 1 + "
         "expired 1 + in flight 2 + delayed 2: 1 too many"),
        ("dead", "badAnswer", 1, "dead: count is 7, its reasons add up to 8"),
    ],
)  # fmt: skip
async def test_a_missing_or_surplus_message_is_reported_in_words(
    redis: Redis, redis_url: str, busy: None, counter: str, field: str, by: int, problem: str
) -> None:
    await redis.hincrby(KEYS.metric(counter), field, by)
    result = await penstock("audit", "demo", redis=redis_url)
    assert (result.status, result.error) == (1, f"penstock: {problem}\n")


async def test_a_late_done_of_a_dead_message_changes_nothing(redis: Redis, redis_url: str, busy: None) -> None:
    await redis.hincrby(KEYS.metric("done:late"), "count", 1)
    assert (await penstock("audit", "demo", redis=redis_url)).status == 0


async def test_a_removed_deadline_is_found(redis: Redis, redis_url: str, busy: None) -> None:
    await redis.zrem(KEYS.deadlines, "7")
    result = await penstock("audit", "demo", redis=redis_url)
    assert result.status == 1
    assert "in flight 1 + delayed 2: 1 missing" in result.error


@pytest.mark.parametrize("key", ["demo:message:deadlines", "demo:metrics:done", "demo:policy", "demo:owners"])
async def test_a_key_of_another_type_is_one_clear_line(redis: Redis, redis_url: str, busy: None, key: str) -> None:
    await redis.delete(key)
    await redis.set(key, "text")
    result = await penstock("audit", "demo", redis=redis_url)
    assert (result.status, result.out) == (1, b"")
    assert result.error.startswith(f"penstock: {key} holds a")


async def test_a_pending_list_of_another_type_is_a_problem(redis: Redis, redis_url: str, busy: None) -> None:
    await redis.set("pending", "text")
    result = await penstock("audit", "demo", redis=redis_url)
    assert result.status == 1
    assert "pending holds a" in result.error


async def test_a_counter_that_is_no_number_is_found(redis: Redis, redis_url: str, busy: None) -> None:
    await redis.hset(KEYS.metric("expired"), "count", "one")
    result = await penstock("audit", "demo", redis=redis_url)
    assert "expired: count is 'one', expected a whole number" in result.error


async def test_a_namespace_that_was_just_started_conserves(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    result = await penstock("audit", "demo", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert "conserved: 0 messages settled, 0 pending" in result.text


async def test_everything_is_read_at_one_instant(redis: Redis) -> None:
    """Messages are taken, tracked and done, always two at a time, while instances come and go."""
    await policy(redis)
    await count(redis, registered=0, taken=0, done=0)
    await redis.rpush("pending:0", "a", "b")
    await redis.zadd(KEYS.owners, {"0": 0})
    enough = asyncio.Event()  # Python 3.11 may lose a cancellation while the client sends
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(keep_moving(redis, enough))
        ledgers = [await audit_tracked(redis, KEYS) for _ in range(150)]
        enough.set()
    assert [json.dumps(found.problems) for found in ledgers if found and not found.holds] == []
    assert len({found.messages for found in ledgers if found}) > 10
    assert {sum(found.pending.values()) for found in ledgers if found} == {2}


async def keep_moving(redis: Redis, enough: asyncio.Event) -> None:
    turn = 0
    while not enough.is_set():
        async with redis.pipeline(transaction=True) as transaction:
            transaction.hincrby(KEYS.metric("taken"), "count", 2)
            transaction.hincrby(KEYS.metric("registered"), "count", 2)
            transaction.zadd(KEYS.deadlines, {f"{turn}a": 1, f"{turn}b": 1})
            transaction.rename(f"pending:{turn}", f"pending:{turn + 1}")
            transaction.zrem(KEYS.owners, str(turn))
            transaction.zadd(KEYS.owners, {str(turn + 1): 0})
            if turn > 2:
                transaction.zrem(KEYS.deadlines, f"{turn - 2}a", f"{turn - 2}b")
                transaction.hincrby(KEYS.metric("done"), "count", 2)
            await transaction.execute()
        turn += 1
        await asyncio.sleep(0.005)


async def test_answers_are_accounted_for_and_a_list_that_others_use_is_a_problem(
    redis: Redis, redis_url: str, busy: None
) -> None:
    await count(redis, answers={"count": 9, "taken": 2, "expired": 1, "lasting": 1, "refused": 3})
    await redis.zadd(KEYS.answers, {"to:a": 2e9, "to:b": 2e9})
    await redis.hset(KEYS.answers_more, "to:a", 3)
    await redis.rpush("to:a", "1", "2")
    result = await penstock("audit", "demo", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    law = (await penstock("audit", "demo", "--json", redis=redis_url)).json["laws"][-1]
    ends = {"taken": 5, "expired": 1, "in lasting lists": 1, "unseen": 0, "waiting": 2, "not looked at": 0}
    assert (law["whole"], law["count"], law["parts"], law["missing"]) == ("answers", 9, ends, 0)
    await redis.rpush("to:b", *["accepted"] * 5)
    await redis.expire("to:b", 60)
    result = await penstock("audit", "demo", redis=redis_url)
    assert result.status == 1
    assert "'to:b' holds 5 messages, at most 1 of them answers" in " ".join(result.error.split())
    await redis.hincrby(KEYS.metric("answers"), "count", 1)
    assert "answers 10 is not taken 4" in " ".join((await penstock("audit", "demo", redis=redis_url)).error.split())
