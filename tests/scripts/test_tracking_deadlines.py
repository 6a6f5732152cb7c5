"""Requests with a deadline of their own: none is handed out after it, and where their time went."""

import json
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.accounting.snapshot import read_snapshot
from tests.support.commandline import penstock
from tests.support.hop import Hop, Start


async def request(hop: Hop, id: str, *, left: float, **meta: object) -> str:
    return json.dumps({"meta": {"id": id, "deadline": await hop.now() + left} | meta})


async def consistent(hop: Hop) -> bool:
    """Return whether the counters of the namespace account for all messages and events."""
    await hop.redis.lpush(hop.keys.ids, "1")  # by which the namespace is found
    one = (await read_snapshot(hop.redis)).tracked["demo"]
    expected = {kind: many for kind, many in one.expected_events.items() if many}
    found = dict.fromkeys(expected, 0)
    for event, _, _ in await hop.events():
        if event not in ("delivered", "delayed"):
            found[event] += 1
    return found == expected and not one.unaccounted and await hop.problems() == []


async def test_a_late_request_is_dropped_and_counted_and_the_others_go_on(start: Start) -> None:
    hop = await start()
    late, later = await request(hop, "a", left=-1), await request(hop, "b", left=-1, delay=5)
    soon = await request(hop, "c", left=5)
    await hop.push("1", late, later, soon)
    assert await hop.held() == [b"1", soon.encode()]
    assert await hop.counts() == {"taken": 4, "delivered": 2, "registered": 2, "dropped": 2}
    assert await hop.metric("dropped") == {"count": 2, "deadline": 2}
    assert await consistent(hop)


@pytest.mark.parametrize("deadline", ["2026-01-01T00:00:00Z", None, True, -1, 1e300, [1], {}])
async def test_a_deadline_that_is_no_number_of_seconds_is_ignored(start: Start, deadline: object) -> None:
    hop = await start()
    await hop.push(json.dumps({"meta": {"id": "a", "deadline": deadline}}))
    assert len(await hop.held()) == 1
    assert (await hop.record(1)).keys().isdisjoint({"until", "details"})


async def test_what_nobody_has_taken_by_its_deadline_leaves_the_list(start: Start) -> None:
    hop = await start(message_timeout=10, message_expire=100)
    hop.eager = False
    await hop.push("1", await request(hop, "a", left=15), "2")
    for _ in range(2):
        await hop.advance(10)
        await hop.sweep()
    assert await hop.held() == [b"1", b"2"]
    assert [(each["xid"], each["reason"]) for each in await hop.letters()] == [("a", "queueTimeout")]
    assert await consistent(hop)


async def shares(redis_url: str, word: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await penstock("trace", "demo", word, "--json", redis=redis_url)).json["shares"]
    return found


def parts(of: dict[str, Any]) -> dict[tuple[str, int | None], float]:
    return {(each["where"], each["attempt"]): each["percent"] for each in of["parts"]}


async def test_trace_shows_each_share_of_the_time_until_the_deadline(
    redis: Redis, redis_url: str, start: Start
) -> None:
    """100,000 s were given, 40,000 are left at its registration; the first attempt says that it worked for 1,000 s."""
    hop = await start(backoff=[0])
    await hop.push(await request(hop, "a", left=40_000, budget=100_000))
    await hop.push_done({"id": 1, "error": "no", "work": 1_000_000})
    await hop.sweep()
    await hop.push_done({"id": 1, "work": 0})
    [found] = await shares(redis_url, "a")
    assert (found["id"], found["budget"]) == ("1", 100_000)
    assert [(each["where"], each["attempt"]) for each in found["parts"]] == [
        *(("before", None), ("queue", 1), ("work", 1), ("back-off", None), ("queue", 2), ("work", 2), ("left", None)),
    ]
    percent = parts(found)
    assert percent["before", None] == pytest.approx(60, abs=0.05)
    assert percent["queue", 1] == 0, "a worker cannot have worked for longer than its attempt took"
    assert percent["work", 2] == 0
    assert sum(percent.values()) == pytest.approx(100, abs=0.05)
    text = (await penstock("trace", "demo", "a", redis=redis_url)).text
    assert "message 1, of the 100000.000 s until its deadline: before 60.0 %" in text
    assert await consistent(hop)


async def test_without_a_deadline_they_are_shares_of_the_time_that_it_took(
    redis: Redis, redis_url: str, start: Start
) -> None:
    hop = await start()
    await hop.push('{"meta": {"id": "a"}}', '{"meta": {"id": "b", "delay": 9}}')
    [under_way] = await shares(redis_url, "a")
    assert {each["where"] for each in under_way["parts"]} <= {"queue, work"}
    assert [each["where"] for each in (await shares(redis_url, "b"))[0]["parts"]] in ([], ["delayed"])
    await hop.answer({"meta": {"id": "a", "work": 1e-6}})
    [found] = await shares(redis_url, "a")
    assert found["deadline"] is None
    assert [each["where"] for each in found["parts"]] == ["queue", "work"]


@pytest.mark.parametrize("work", ["1", None, -1, True, 1e300, [1]])
async def test_work_that_is_no_time_is_ignored(start: Start, work: object) -> None:
    hop = await start()
    await hop.push('{"meta": {"id": "a"}}', "2")
    await hop.answer({"meta": {"id": "a", "work": work, "attempt": 1}})
    await hop.push_done({"xid": 2, "work": work})
    assert (await hop.counts())["done"] == 2
    entries = await hop.redis.xrange(hop.keys.events)
    assert all(b"details" not in fields for _, fields in entries)
