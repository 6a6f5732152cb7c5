"""penstock trace: the life of a message from the event stream."""

import pytest
from redis.asyncio import Redis

from tests.cli.given import rows
from tests.support.commandline import AWKWARD, Result, penstock
from tests.support.tracked import KEYS, crowd, event, in_flight, now, policy, tombstone


async def life(redis: Redis, id: str = "3", xid: str = "a", *, ago: float = 60) -> float:
    """Write the events of a message that times out once and is then done; return when it began."""
    began = await now(redis) - ago
    for after, name, attempt, seconds in (
        (0.0, "registered", 1, ""),
        (10.25, "timeout", 1, "10.250000"),
        (11.5, "retry", 2, "11.500000"),
        (12.75, "done", 2, "1.250000"),
    ):
        await event(redis, name, id, xid, at=began + after, attempt=attempt, seconds=seconds)
    return began


def named(result: Result) -> list[str]:
    return [each["event"] for each in result.json["events"]]


async def test_a_life_is_a_table(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await event(redis, "registered", "2", "other", ago=61)
    await life(redis)
    await event(redis, "registered", "33", "3", ago=10)
    result = await penstock("trace", "demo", "3", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert "demo: the life of message 3 (xid a)" in result.text
    cells = rows(result)
    steps = [row[2:] for row in cells]
    assert steps == [
        ["registered", "1", "out", "2", "-"],
        ["timeout", "1", "out", "2", "10.250"],
        ["retry", "2", "out", "2", "11.500"],
        ["done", "2", "out", "2", "1.250"],
    ]
    assert [float(row[1]) for row in cells] == pytest.approx([0, 10.25, 11.5, 12.75], abs=0.002)
    assert all(len(row[0]) == len("2026-01-01 00:00:00.000") for row in cells)


async def test_json_says_the_same(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    began = await life(redis)
    output = (await penstock("trace", "demo", "a", "--json", redis=redis_url)).json
    assert (output["namespace"], output["asked"], len(output["events"])) == ("demo", "a", 4)
    last = output["events"][-1]
    assert last.pop("at") == pytest.approx(began + 12.75, abs=0.002)
    assert last.pop("since") == pytest.approx(12.75, abs=0.002)
    assert last == {
        "id": "3", "xid": "a", "event": "done", "attempt": 2, "queue": "out", "service": "2", "seconds": 1.25,
    }  # fmt: skip


async def test_an_xid_shows_the_lives_of_all_that_had_it(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await life(redis, "3", "a", ago=60)
    await life(redis, "9", "a", ago=30)
    result = await penstock("trace", "demo", "a", redis=redis_url)
    assert "the life of 2 messages a" in result.text
    assert [row[0] for row in rows(result)] == ["3"] * 4 + ["9"] * 4


async def test_a_number_is_an_id_first_and_then_an_xid(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await life(redis, "3", "12345")
    await life(redis, "12", "3", ago=40)
    assert {
        each["id"] for each in (await penstock("trace", "demo", "3", "--json", redis=redis_url)).json["events"]
    } == {"3"}
    assert len(named(await penstock("trace", "demo", "12345", "--json", redis=redis_url))) == 4
    assert len(named(await penstock("trace", "demo", "0012345", "--json", redis=redis_url))) == 4


async def test_a_number_that_is_an_xid_in_flight_means_that_message(redis: Redis, redis_url: str) -> None:
    """``penstock done`` means the same message: message 3 is done and no longer tracked."""
    await policy(redis)
    await in_flight(redis, "9", "3", age=30)
    await event(redis, "registered", "9", "3", ago=30)
    await event(redis, "done", "3", "a", ago=20)
    output = (await penstock("trace", "demo", "3", "--json", redis=redis_url)).json["events"]
    assert [each["id"] for each in output] == ["9"]


async def test_the_stream_is_read_from_the_time_that_the_record_tells(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await crowd(redis, 2500)
    await life(redis, "3", ago=60)
    await tombstone(redis, "3", age=30)
    await redis.config_resetstat()
    assert len(named(await penstock("trace", "demo", "3", "--json", redis=redis_url))) == 4
    before = (await redis.info("commandstats"))["cmdstat_xrange"]["calls"]
    assert before == 2, "one chunk and the end"


async def test_a_long_stream_is_read_in_chunks(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await event(redis, "registered", ago=101)
    await crowd(redis, 5000)
    await redis.xadd(KEYS.events, {"event": "done", "id": "3", "at": round(await now(redis) * 1000)})
    await redis.config_resetstat()
    assert named(await penstock("trace", "demo", "3", "--json", redis=redis_url)) == ["registered", "done"]
    assert (await redis.info("commandstats"))["cmdstat_xrange"]["calls"] == 7


async def test_entries_that_say_little_are_shown_as_far_as_they_go(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await redis.xadd(KEYS.events, {"id": "3", "attempt": "many", "at": "noon", "seconds": "nan"}, id="1000-1")
    await redis.xadd(KEYS.events, {"id": "3", "event": "\x1b[31mred\n", "at": "1e300", "xid": b"\xff"}, id="2000-1")
    result = await penstock("trace", "demo", "3", redis=redis_url)
    odd, other = rows(result)
    assert odd == ["1970-01-01 00:00:01.000", "0.000", "", "-", "-", "-", "-"]
    assert other[2] == "\\x1b[31mred\\n"
    assert "\x1b" not in result.text


async def test_a_message_without_events_is_a_failure(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    none = await penstock("trace", "demo", "3", redis=redis_url)
    assert (none.status, none.out) == (1, b"")
    assert none.error == "penstock: no event of a message 3: demo:events has no events\n"
    await redis.xadd(KEYS.events, {"event": "done", "id": "2", "at": 0}, id="1-1")
    some = await penstock("trace", "demo", "3", redis=redis_url)
    assert "no event of a message 3: demo:events has 1 event since 1970-01-01 00:00:00 UTC" in some.error


@pytest.mark.parametrize("xid", [*AWKWARD, "\x1b[31m", "next:3", "id", "0"])
async def test_an_xid_may_be_anything(redis: Redis, redis_url: str, xid: str) -> None:
    await policy(redis)
    await life(redis, "3", xid)
    result = await penstock("trace", "demo", xid, redis=redis_url)
    assert (result.status, len(rows(result))) == (0, 4)
    assert "\x1b" not in result.text
