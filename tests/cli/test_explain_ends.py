"""penstock explain of messages that have ended: dead, revived, buried, done, expired, unknown."""

import re

import pytest
from redis.asyncio import Redis

from tests.cli.given import explained, facts, without_times
from tests.support.commandline import penstock
from tests.support.tracked import KEYS, bury, crowd, event, in_flight, letter, now, policy, tombstone


@pytest.fixture(autouse=True)
async def tracks(redis: Redis) -> None:
    await policy(redis)


async def test_dead(redis: Redis, redis_url: str) -> None:
    await tombstone(redis)
    await bury(redis, letter("2"), letter("3", at=await now(redis) - 65, xid="a", error="no \x1bdisk", reason="failed"))
    expected = [
        "Message 3 (xid a) died 1 min 5 s ago (T): failed after attempt 3 of 3.",
        "The error was: no \\x1bdisk",
        "Waiting for you: it is a dead letter in demo:dead and goes back to in:",
        "penstock revive demo 3",
    ]
    assert await explained(redis_url) == expected
    assert await explained(redis_url, "a") == expected
    await redis.delete(KEYS.message("3"), KEYS.xid("a"))
    assert await explained(redis_url) == expected, "also when its record is gone"
    assert await explained(redis_url, "a") == expected


async def test_dead_and_never_tracked(redis: Redis, redis_url: str) -> None:
    await bury(redis, letter(None, reason="poison", xid="p", at=await now(redis) - 65, attempts=0))
    first, second, last = await explained(redis_url, "p")
    assert re.fullmatch(r"Message @\w{12} \(xid p\) died 1 min 5 s ago \(T\): poison\.", first)
    assert "goes back to in" in second
    assert (await explained(redis_url, last.split()[-1])) == [first, second, last]


async def test_poison_is_found_by_the_xid_in_its_message(redis: Redis, redis_url: str) -> None:
    """Nobody has parsed it: its letter has no xid."""
    await bury(redis, letter(None, b'{"meta": {"id": "p"}}', reason="poison", attempts=0), letter("4"))
    first, second, last = await explained(redis_url, "p")
    assert re.fullmatch(r"Message @\w{12} died .* ago \(T\): poison\.", first)
    assert "dead letter in demo:dead" in second
    assert (await explained(redis_url, '{"meta": {"id": "p"}}')) == [first, second, last]
    assert (await penstock("explain", "demo", "q", redis=redis_url)).status == 1


async def test_revived(redis: Redis, redis_url: str) -> None:
    await tombstone(redis)
    await bury(redis, letter("3", xid="a"))
    await event(redis, "dead")
    assert (await penstock("revive", "demo", "3", redis=redis_url)).status == 0
    assert await explained(redis_url) == [
        "Message 3 (xid a) died and was revived 0 s ago (T): it went back to in and gets a new id."
    ]
    await redis.delete(KEYS.message("3"), KEYS.xid("a"))
    assert (await facts(redis_url))["state"] == "revived"


async def test_buried(redis: Redis, redis_url: str) -> None:
    await tombstone(redis)
    await bury(redis, letter("3", xid="a"))
    assert (await penstock("bury", "demo", "3", redis=redis_url)).status == 0
    assert await explained(redis_url) == ["Message 3 (xid a) died, and its letter was buried 0 s ago (T)."]


async def test_revived_or_buried_if_no_event_says_which(redis: Redis, redis_url: str) -> None:
    await tombstone(redis)
    assert await explained(redis_url) == [
        "Message 3 (xid a) died 1 min 5 s ago (T) (timeout), and its letter is gone: it was revived or buried."
    ]


async def test_done(redis: Redis, redis_url: str) -> None:
    await event(redis, "registered", ago=70)
    await event(redis, "done", attempt=2, seconds="1.250000")
    expected = ["Message 3 (xid a) was done 1 min 5 s ago (T), with attempt 2 of 3. It took 1.250 s."]
    assert await explained(redis_url) == expected
    assert await explained(redis_url, "a") == expected


async def test_done_long_ago_under_a_number_that_is_an_xid_as_well(redis: Redis, redis_url: str) -> None:
    await event(redis, "done", "3", ago=200)
    await crowd(redis, 1500)
    await event(redis, "done", "9", "3")
    assert (await facts(redis_url, "3"))["id"] == "3"


async def test_done_late(redis: Redis, redis_url: str) -> None:
    await event(redis, "late", seconds="31.5")
    assert await explained(redis_url) == [
        "Message 3 (xid a) was done 1 min 5 s ago (T), with attempt 1 of 3, after its time-out. It took 31.500 s."
    ]


async def test_done_and_there_again_under_the_same_xid(redis: Redis, redis_url: str) -> None:
    await event(redis, "done")
    await in_flight(redis, "4")
    assert (await explained(redis_url, "a"))[0].startswith("Message 4 (xid a) is in flight")
    assert (await explained(redis_url, "3"))[0].startswith("Message 3 (xid a) was done")


async def test_expired(redis: Redis, redis_url: str) -> None:
    await event(redis, "expired", attempt="")
    assert await explained(redis_url) == [
        "Message 3 (xid a) expired 1 min 5 s ago (T): its record was gone when it was due."
    ]


async def test_unknown(redis: Redis, redis_url: str) -> None:
    result = await penstock("explain", "demo", "3", redis=redis_url)
    assert (result.status, result.error) == (1, "")
    assert result.text.splitlines() == [
        "Message 3 is unknown in demo.",
        "There are no events: it may have been done.",
    ]
    await redis.lpush("in", "a", "b")
    await event(redis, "done", "2", "b")
    assert without_times(await penstock("explain", "demo", "3", redis=redis_url)) == [
        "Message 3 is unknown in demo.",
        "In in, not registered yet: 2 messages; it may be among them.",
        "The events reach back to T: it may have been done before that.",
    ]
