"""Who is tried again: what a request may ask for, what the settings say."""

import json

import pytest
from redis.asyncio import Redis

from penstock.accounting.snapshot import read_snapshot
from tests.support.balancing import SOURCE, move
from tests.support.hop import Hop, Start


async def attempts_made(hop: Hop) -> int:
    """Let every attempt fail; return how many there were."""
    made = 1
    while await hop.in_flight():
        await hop.advance(10)
        await hop.sweep()
        await hop.advance(5)
        await hop.sweep()
        made += bool(await hop.in_flight())
    assert await hop.problems() == []
    return made


@pytest.mark.parametrize(
    ("settings", "made"),
    [({}, 1), ({"message_attempts": "ignore"}, 3), ({"message_attempts": "ignore", "attempts": 1}, 1)],
    ids=["as the request asks", "as a rule with retry", "as a rule without"],
)
async def test_the_settings_say_whether_a_request_may_forbid_retries(
    start: Start, settings: dict[str, object], made: int
) -> None:
    hop = await start(message_timeout=10, message_expire=200, backoff=[5], **settings)
    await hop.push(json.dumps({"meta": {"id": "a", "attempts": 1}}))
    assert await attempts_made(hop) == made
    assert [each["attempts"] for each in await hop.letters()] == [made]


async def test_where_attempts_are_ignored_they_may_be_anything(start: Start) -> None:
    hop = await start(message_attempts="ignore")
    await hop.push(json.dumps({"meta": {"id": "a", "attempts": "many"}}))
    assert await hop.in_flight() == ["1"]


async def test_with_mbalance_a_retry_goes_to_another_worker_than_the_dead_one(redis: Redis, start: Start) -> None:
    hop = await start(namespace="shop", in_="requests", out=SOURCE, message_timeout=10, backoff=[5])
    hop.eager = False

    async def balance() -> None:
        await move(redis, ["one", "two"], registrations=["one:alive", "two:alive"])

    await redis.set("one:alive", 1)
    await hop.push("7")
    await balance()
    assert await redis.rpop("one") == b"7"
    await hop.check_taken()
    await redis.delete("one:alive")
    await redis.set("two:alive", 1)
    await hop.advance(10)
    await hop.sweep()
    await balance()
    assert await redis.exists("one", "two", SOURCE) == 0, "the back-off is not over"
    await hop.advance(5)
    await hop.sweep()
    await balance()
    assert (await hop.record(1))["attempt"] == "2"
    assert (await redis.llen("one"), await redis.lrange("two", 0, -1)) == (0, [b"7"])


async def limited(start: Start, many: int, budget: int | None = 10) -> Hop:
    """Return a hop with ``many`` requests whose first attempts have timed out."""
    hop = await start(message_timeout=10, message_expire=200, backoff=[5], retry_budget=budget)
    await hop.push(*(json.dumps({"meta": {"id": f"r{n}", "replyTo": "to:a"}}) for n in range(many)))
    await hop.advance(10)
    await hop.sweep()
    assert await hop.problems() == []
    return hop


@pytest.mark.parametrize(("budget", "tried"), [(10, 100), (1, 10), (None, 130), (100, 130)])
async def test_beyond_the_budget_a_request_fails_at_once(start: Start, budget: int | None, tried: int) -> None:
    hop = await limited(start, 130, budget)
    assert len(await hop.delayed()) == tried
    letters = await hop.letters()
    assert [each["reason"] for each in letters] == ["retryBudget"] * (130 - tried)
    assert {each["attempts"] for each in letters} <= {1}
    answers = [json.loads(each)["error"]["reason"] for each in await hop.held("to:a")]
    assert answers == ["retryBudget"] * (130 - tried)
    dead = await hop.metric("dead")
    assert dead.get("retryBudget", 0) == 130 - tried
    await hop.redis.lpush(hop.keys.ids, "1")
    one = (await read_snapshot(hop.redis)).tracked["demo"]
    assert (one.expected_events["dead"], one.unaccounted) == (130 - tried, 0)
    assert sum(event == "dead" for event, _, _ in await hop.events()) == 130 - tried
