"""Backlogs longer than messageTimeout: a message has no deadline before it is taken, and is in its list once."""

import random
from typing import Any

import pytest

from penstock.tracking.record import UNTAKEN
from tests.support.hop import Hop, Start

pytestmark = pytest.mark.slow


async def backlog(start: Start, messages: int = 3, monitors: int = 1, **settings: Any) -> Hop:
    """Return a hop with ``messages`` messages that workers take only if the test says so."""
    hop = await start(monitors, **{"message_timeout": 10, "backoff": [5], "message_expire": 60, **settings})
    hop.eager = False
    await hop.push(*[b"m%d" % number for number in range(1, messages + 1)])
    return hop


async def pass_time(hop: Hop, seconds: int, step: int = 1) -> None:
    """Let time pass, with a sweep every ``step`` seconds."""
    for _ in range(0, seconds, step):
        await hop.advance(step)
        await hop.sweep()


async def test_an_untaken_message_is_not_pushed_again_and_uses_up_no_attempt(start: Start) -> None:
    hop = await backlog(start, 300)
    await pass_time(hop, 200, 10)
    assert len(await hop.held()) == 300
    assert (await hop.in_flight(), await hop.delayed()) == ([str(id) for id in range(1, 301)], [])
    assert await hop.counts() == {"taken": 300, "delivered": 300, "registered": 300, "overdue": 300}
    record = await hop.record(1)
    assert record["attempt"] == "1"
    assert float(record["deadline"]) - float(record["timestamp"]) == pytest.approx(10, abs=1e-3)
    keys = hop.keys.message("1"), hop.keys.xid(record["xid"])
    assert [await hop.redis.ttl(key) for key in keys] == [-1, -1], "a record lives as long as its message waits"


async def test_the_clock_starts_when_a_message_is_taken(start: Start) -> None:
    hop = await backlog(start)
    await pass_time(hop, 100)
    await hop.take(1)
    await hop.sweep()
    deadline = await hop.redis.zscore(hop.keys.deadlines, "1")
    assert deadline - await hop.now() == pytest.approx(10, abs=0.9)
    assert float((await hop.record(1))["deadline"]) == pytest.approx(deadline, abs=1e-3)
    assert 55 < await hop.redis.ttl(hop.keys.message("1")) <= 60
    await pass_time(hop, 9)
    assert "timeout" not in await hop.counts()
    await pass_time(hop, 2)
    assert (await hop.counts())["timeout"] == 1
    await pass_time(hop, 5)
    assert await hop.held() == [b"m1", b"m2", b"m3", b"m1"]
    await pass_time(hop, 100)
    assert await hop.held() == [b"m1", b"m2", b"m3", b"m1"], "the retry is not taken, either"
    assert (await hop.counts()).items() >= {"timeout": 1, "retry": 1, "overdue": 4}.items()
    await hop.push_done("m1", "m2", {"id": 3})
    await hop.push_done({"id": 1}, {"id": 2})
    assert await hop.in_flight() == []


async def test_a_message_taken_shortly_before_its_first_deadline_has_its_whole_time(start: Start) -> None:
    hop = await backlog(start, 1)
    await pass_time(hop, 8)
    await hop.take()
    await pass_time(hop, 9)
    assert "timeout" not in await hop.counts()
    await pass_time(hop, 2)
    assert await hop.metric("timeout") == {
        "count": 1,
        "histo100": 1,
        "sum": pytest.approx(19, abs=1.9),
        "max": pytest.approx(19, abs=1.9),
    }


async def test_a_message_taken_at_once_times_out_within_one_check_of_its_first_deadline(start: Start) -> None:
    hop = await backlog(start, 1)
    await hop.redis.rpop("out")
    await pass_time(hop, 9)
    assert "timeout" not in await hop.counts()
    await pass_time(hop, 3)
    assert (await hop.counts())["timeout"] == 1


async def test_what_no_monitor_has_seen_is_given_its_time_from_the_first_look(start: Start) -> None:
    hop = await backlog(start, 1)
    await hop.redis.rpop("out")
    await hop.advance(50)
    await hop.sweep()
    await pass_time(hop, 9)
    assert "timeout" not in await hop.counts()
    await pass_time(hop, 2)
    assert (await hop.counts())["timeout"] == 1


async def test_workers_end_fail_and_touch_what_was_overdue_as_any_other(start: Start) -> None:
    hop = await backlog(start, 3, attempts=1)
    await pass_time(hop, 50)
    await hop.take(2)
    await hop.push_done({"id": 1}, {"id": 2, "error": "no luck"})
    await hop.sweep()
    assert (await hop.counts()).items() >= {"done": 1, "failed": 1, "dead": 1}.items()
    await hop.push_done({"id": 3, "touch": 20})
    assert await hop.redis.zscore(hop.keys.deadlines, "3") - await hop.now() == pytest.approx(20, abs=0.9)
    assert 60 < await hop.redis.ttl(hop.keys.message("3")) <= 80
    await pass_time(hop, 30)
    assert await hop.in_flight() == ["3"]
    assert await hop.redis.zscore(hop.keys.deadlines, "3") == UNTAKEN + 3, "nobody has taken it: it waits again"
    await hop.take()
    await pass_time(hop, 12)
    assert (await hop.counts()).items() >= {"timeout": 1, "dead": 2}.items()


async def test_untracked_messages_have_numbers_too(start: Start) -> None:
    hop = await backlog(start, 5, message_capacity=2)
    await hop.push_done({"id": 1}, {"id": 2})
    await hop.push(b"behind")
    await pass_time(hop, 50)
    await hop.take(5)
    await pass_time(hop, 50)
    assert await hop.held() == [b"m1", b"m2", b"m3", b"m4", b"m5", b"behind"]
    await hop.take(1)
    await pass_time(hop, 16)
    assert (await hop.counts())["retry"] == 1


async def test_records_of_an_older_version_time_out_as_before(start: Start) -> None:
    hop = await backlog(start, 2)
    for id in ("1", "2"):
        await hop.redis.hdel(hop.keys.message(id), "number")
    await hop.redis.delete(hop.keys.pushed)
    await hop.push(b"new")
    await pass_time(hop, 11)
    assert (await hop.counts()).items() >= {"timeout": 2, "overdue": 1}.items()


async def deleted(hop: Hop) -> None:
    await hop.redis.delete("out")


async def numbers_lost(hop: Hop) -> None:
    await hop.redis.rpop("out", 5)
    await hop.redis.delete(hop.keys.pushed)


async def taken_from_the_head(hop: Hop) -> None:
    await hop.redis.lpop("out", 5)


async def trimmed(hop: Hop) -> None:
    await hop.redis.ltrim("out", 5, -1)


async def others_push(hop: Hop) -> None:
    await hop.redis.lpush("out", *(f"theirs {number}" for number in range(50)))
    await hop.redis.rpop("out", 5)


async def others_pushed_ahead(hop: Hop) -> None:
    await hop.redis.rpop("out", 5)
    await hop.redis.rpush("out", *(f"theirs {number}" for number in range(50)))


async def returned(hop: Hop) -> None:
    first, second, *_ = await hop.redis.rpop("out", 7)
    await hop.redis.rpush("out", first)
    await hop.redis.lpush("out", second)


@pytest.mark.parametrize(
    "happens", [deleted, numbers_lost, taken_from_the_head, trimmed, others_push, others_pushed_ahead, returned]
)
@pytest.mark.parametrize("before", [0, 50], ids=["at first", "when they are overdue"])
async def test_messages_of_a_dead_worker_are_retried_whatever_happens_to_the_list(
    start: Start, happens: Any, before: int
) -> None:
    """After that, nobody takes from the list."""
    hop = await backlog(start, 10)
    await pass_time(hop, before, 5)
    await happens(hop)
    left = set(await hop.redis.lrange("out", 0, -1))
    lost = [str(id) for id in range(1, 11) if b"m%d" % id not in left]
    assert len(lost) in (5, 10)
    await pass_time(hop, 45)
    assert {id for id in lost if (await hop.record(id))["attempt"] == "1"} == set()


@pytest.mark.parametrize("seed", range(6))
async def test_no_message_is_stuck_whatever_others_do_with_the_list(start: Start, seed: int) -> None:
    """Push, take at both ends and in the middle, and return messages at random; no taker ever reports an end.

    Then take as much as others push, so the backlog stays. A message that the list has lost is retried at the latest
    when its turn would have come.
    """
    chance = random.Random(seed)
    hop = await backlog(start, 0, attempts=100, message_expire=100_000)
    own = 0
    for number in range(60):
        match chance.randrange(8):
            case 0 | 1 | 2:
                more = range(own + 1, own + chance.randrange(2, 7))
                await hop.push(*[b"m%d" % each for each in more])
                own = more.stop - 1
            case 3:
                await hop.redis.lpush("out", *(f"theirs {number} {place}" for place in range(chance.randrange(1, 6))))
            case 4:
                await hop.redis.rpop("out", chance.randrange(1, 8))
            case 5:
                await chance.choice((hop.redis.lpop, hop.redis.rpop))("out", 2)
            case 6 if (taken := await hop.redis.rpop("out")) is not None:
                await chance.choice((hop.redis.lpush, hop.redis.rpush))("out", taken)
            case 7 if length := await hop.redis.llen("out"):
                await hop.redis.lrem("out", 1, await hop.redis.lindex("out", chance.randrange(length)))
        if chance.random() < 0.3:
            await pass_time(hop, 1)
        if chance.random() < 0.05:
            await pass_time(hop, 12)
    seen = dict.fromkeys([(await hop.record(id))["message"] for id in await hop.in_flight()], 0)
    for second in range(0, 160, 2):
        await hop.redis.rpop("out", 8)
        await hop.redis.lpush("out", *(f"more {second} {place}" for place in range(8)))
        await pass_time(hop, 2, 2)
        seen |= dict.fromkeys([each for each in map(bytes.decode, await hop.held()) if each in seen], second)
    assert {message: second for message, second in seen.items() if second < 80} == {}


async def test_with_queue_timeout_what_waited_too_long_is_a_dead_letter_and_out_of_the_list(start: Start) -> None:
    hop = await backlog(start, 3, queue_timeout=30)
    await pass_time(hop, 5)
    await hop.push(b'{"meta":{"id":"later","replyTo":"demo:reply:1"}}')
    await pass_time(hop, 20, 2)
    assert "dead" not in await hop.counts()
    await pass_time(hop, 6, 2)
    assert [letter["message"] for letter in await hop.letters()] == [b"m1", b"m2", b"m3"]
    assert {(letter["reason"], letter["attempts"]) for letter in await hop.letters()} == {("queueTimeout", 1)}
    assert len(await hop.redis.lrange("out", 0, -1)) == 1
    await pass_time(hop, 6, 2)
    assert await hop.redis.llen("out") == 0
    assert (await hop.events())[-2:] == [("queueTimeout", "4", "1"), ("dead", "4", "1")]
    assert await hop.counts() == {"taken": 4, "delivered": 4, "registered": 4, "overdue": 4, "dead": 4, "answers": 1}
    assert b'"reason":"queueTimeout"' in (await hop.held("demo:reply:1"))[0]


async def test_queue_timeout_takes_nothing_from_a_worker(start: Start) -> None:
    hop = await backlog(start, 3, queue_timeout=30)
    await pass_time(hop, 25)
    await hop.take(2)
    await pass_time(hop, 7)
    assert [letter["message"] for letter in await hop.letters()] == [b"m3"]
    assert await hop.in_flight() == ["1", "2"]
