"""Reports of workers: done (in time, late or repeated), failed, failed for good, and touch."""

import hashlib
from typing import Any, Final

import pytest

from penstock.base.errors import Fenced
from tests.support.clock import Span
from tests.support.hop import Hop, Start

SHA1 = hashlib.sha1(b"hello").hexdigest()


async def in_backoff(start: Start, **settings: Any) -> Hop:
    """Return a hop with message 1, whose first attempt has timed out."""
    hop = await start(message_timeout=10, backoff=[5], **settings)
    await hop.push(b"hello")
    await hop.advance(10)
    await hop.sweep()
    assert await hop.delayed() == ["1"]
    return hop


def late(hop: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in hop.items() if name.startswith("done")}


@pytest.mark.parametrize(
    "entry",
    [
        "1",
        "0001",
        SHA1,
        {"id": 1},
        {"id": "1"},
        {"id": "01"},
        {"xid": SHA1},
        {"id": 1, "xid": "of another"},
        {"id": 1, "attempt": 1},
        {"xid": SHA1, "attempt": 1, "error": None, "what": "else"},
        ' {"id": 1} ',
    ],
    ids=str,
)
async def test_a_message_is_done_by_any_of_its_names(start: Start, entry: Any) -> None:
    hop = await start()
    await hop.push(b"hello")
    await hop.push_done(entry)
    assert await hop.counts() == {"taken": 1, "delivered": 1, "registered": 1, "done": 1}
    assert not await hop.redis.exists(
        hop.keys.message("1"), hop.keys.xid(SHA1), hop.keys.deadlines, hop.keys.message_ids
    )


async def test_a_name_that_looks_like_an_id_is_none_in_quotes_of_xid(start: Start) -> None:
    hop = await start()
    await hop.push(b"hello", b'{"meta":{"id":1}}')
    await hop.push_done({"xid": 1})
    assert await hop.in_flight() == ["1"]


TEXT: Final = b'{"meta":{"id":"1"}}'
NUMBER: Final = b'{"meta":{"id":1}}'


@pytest.mark.parametrize(
    ("pushed", "entry", "left"),
    [
        ((NUMBER, TEXT), {"xid": "1"}, ["1"]),
        ((NUMBER, TEXT), {"xid": 1.0}, ["2"]),
        ((NUMBER, TEXT), "1", ["2"]),
        ((NUMBER,), {"xid": "1"}, ["1"]),
        ((TEXT,), {"xid": 1}, ["1"]),
        ((TEXT,), "1", []),
        ((TEXT,), '"1"', []),
        ((b"1",), {"xid": "1"}, []),
        ((b"1",), {"xid": 1}, []),
        ((b"8" * 600,), {"xid": "8" * 600}, []),
        ((b"8" * 600,), "8" * 600, []),
        ((b'{"meta":{"id":"%s"}}' % (b"x" * 600),), {"xid": "x" * 600}, []),
        ((b'{"meta":{"id":"%s"}}' % (b"x" * 600),), "x" * 600, []),
        ((b'{"meta":{"id":1795880000.123456788}}',), '{"xid":1795880000.123456789}', ["1"]),
        ((b'{"meta":{"id":1795880000.123456789}}',), "1795880000.1234567890", ["1"]),
        ((b'{"meta":{"id":1795880000.123456789}}',), "1795880000.123456789", []),
        ((b'{"meta":{"id":1e400}}',), '{"xid":10e399}', []),
        ((b'{"meta":{"id":1e400}}',), '{"xid":1e500}', ["1"]),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_texts_are_apart_from_numbers_and_numbers_are_exact(
    start: Start, pushed: tuple[bytes, ...], entry: Any, left: list[str]
) -> None:
    hop = await start()
    await hop.push(*pushed)
    await hop.push_done(entry)
    assert await hop.in_flight() == left


async def test_a_report_names_by_its_text_what_an_older_version_has_registered(start: Start) -> None:
    """Before 0.3 the text "1" had the xid 1, as the number has."""
    hop = await start()
    await hop.push(TEXT)
    await hop.redis.rename(hop.keys.xid('"1"'), hop.keys.xid("1"))
    await hop.redis.hset(hop.keys.message("1"), "xid", "1")
    await hop.push_done({"xid": "1"})
    assert await hop.in_flight() == []


async def second_attempt(start: Start, **settings: Any) -> Hop:
    """Return a hop with message 1, whose second attempt is in flight."""
    hop = await in_backoff(start, **settings)
    await hop.advance(5)
    await hop.sweep()
    assert await hop.in_flight() == ["1"]
    return hop


@pytest.mark.parametrize(
    "more", [{}, {"error": "no luck"}, {"error": "no luck", "retry": False}, {"touch": 500}], ids=str
)
async def test_what_a_stale_worker_says_is_late_and_the_younger_attempt_stays(start: Start, more: Any) -> None:
    hop = await second_attempt(start)
    before = await hop.record(1), await hop.redis.zscore(hop.keys.deadlines, "1")
    await hop.push_done({"id": 1, "attempt": 1, **more})
    assert (await hop.record(1), await hop.redis.zscore(hop.keys.deadlines, "1")) == before
    assert await hop.metric("done:late") == {"count": 1}
    assert not (await hop.counts()).keys() & {"failed", "touched", "done:unknown"}
    await hop.push_done({"id": 1, "attempt": 2})
    assert late(await hop.counts()) == {"done": 1, "done:late": 1}
    assert (await hop.events())[-1] == ("done", "1", "2")


@pytest.mark.parametrize("at_once", [True, False])
async def test_reports_after_that_of_a_stale_worker_mean_the_message_that_stayed(start: Start, at_once: bool) -> None:
    hop = await second_attempt(start)
    await (hop.push_done_batch if at_once else hop.push_done)(
        {"xid": SHA1, "attempt": 1}, {"xid": SHA1, "attempt": 2}, SHA1
    )
    assert late(await hop.counts()) == {"done": 1, "done:late": 1, "done:unknown": 1}
    assert await hop.in_flight() == []


async def test_with_accept_late_the_done_of_a_stale_worker_ends_the_message(start: Start) -> None:
    hop = await second_attempt(start, accept_late=True)
    await hop.push_done({"id": 1, "attempt": 1, "error": "no luck"}, {"id": 1, "attempt": 1, "touch": 50})
    assert await hop.metric("done:late") == {"count": 2}
    await hop.push_done({"id": 1, "attempt": 1})
    assert await hop.metric("done:late") == {"count": 3, "completed": 1}
    assert await hop.in_flight() == []
    assert (await hop.events())[-1] == ("late", "1", "1"), "the attempt that did it"
    assert late(await hop.counts()) == {"done:late": 3}


@pytest.mark.parametrize("seconds", [0.5, 30, 86_400])
async def test_a_touch_gives_a_message_more_time(start: Start, seconds: float) -> None:
    hop = await start(message_timeout=10, message_expire=60)
    await hop.push(b"hello")
    await hop.advance(10)  # it is overdue, and no monitor has noticed
    began = await hop.now()
    await hop.push_done({"id": 1, "touch": seconds})
    deadline = await hop.redis.zscore(hop.keys.deadlines, "1")
    assert deadline == Span(began, await hop.now()) + seconds
    assert float((await hop.record(1))["deadline"]) == pytest.approx(deadline, abs=1e-3)
    assert await hop.redis.ttl(hop.keys.message("1")) > seconds + 30
    assert await hop.redis.ttl(hop.keys.xid(SHA1)) > seconds + 30
    assert (await hop.counts())["touched"] == 1
    await hop.push_done(SHA1)
    assert late(await hop.counts()) == {"done": 1}


@pytest.mark.parametrize("error", ["bad address", "", "ünï¢ødé ✓", "\0", 'with "quotes"', "\ud800", 404, ["a"]])
async def test_a_worker_that_gives_up_for_good_has_its_words_in_the_dead_letter(start: Start, error: Any) -> None:
    hop = await start(attempts=3)
    await hop.push(b"hello", b"neighbour")
    await hop.push_done({"id": 1, "error": error, "retry": False}, "2")
    await hop.sweep()
    (letter,) = await hop.letters()
    words = str(error).encode(errors="surrogatepass").decode(errors="surrogateescape")
    assert (letter["reason"], letter["error"], letter["attempts"]) == ("failed", words, 1)
    assert (await hop.counts()).items() >= {"failed": 1, "dead": 1, "done": 1}.items()


async def test_a_dead_letter_says_all_that_is_known(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=2, backoff=[5], reply_to="replies")
    began = await hop.now()
    await hop.push(b'{"meta":{"id":"a","replyTo":"mine"}}')
    await hop.advance(10)
    await hop.sweep()
    await hop.advance(5)
    await hop.sweep()
    await hop.advance(10)
    await hop.sweep()
    (letter,) = await hop.letters()
    moments = [letter.pop(name) for name in ("first", "last", "at")]
    assert all(isinstance(moment, int) for moment in moments)
    here = Span(began, await hop.now())
    assert [moment / 1000 for moment in moments] == [here - 25, here - 10, here]
    assert letter == {
        "message": b'{"meta":{"id":"a","replyTo":"mine"}}',
        "reason": "timeout",
        "queue": "out",
        "source": "in",
        "attempts": 2,
        "id": "1",
        "xid": "a",
        "service": "1",
        "replyTo": "mine",
    }


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"{",
        b"{}",
        b'{"id":null}',
        b'{"id":true}',
        b'{"id":1.5}',
        b'{"id":"one"}',
        b'{"id":"xid:%b"}' % SHA1.encode(),
        b'{"id":-1}',
        b'{"xid":""}',
        b'{"xid":["a"]}',
        b'{"error":"of whom?"}',
        b'{"id":1',
        b'{"id":1,"touch":0}',
        b'{"id":1,"touch":-1}',
        b'{"id":1,"touch":"5"}',
        b'{"id":1,"touch":true}',
        b'{"id":1,"touch":NaN}',
        b'{"id":1,"touch":86401}',
        b'{"id":1,"touch":' + b"9" * 5000 + b"}",
        b'{"id":"\xff"}',
        b'{"a":' * 100_000,
    ],
    ids=lambda entry: entry[:24],
)
async def test_an_entry_that_cannot_be_parsed_is_a_dead_letter(start: Start, entry: bytes) -> None:
    hop = await start()
    await hop.push(b"hello")
    await hop.push_done(entry)
    (letter,) = await hop.letters()
    assert (letter["message"], letter["reason"], letter["source"]) == (entry, "badDone", "demo:done")
    assert letter["error"].startswith(("expected ", "touch: expected "))
    assert "queue" not in letter
    assert await hop.metric("dead") == {"count": 1, "badDone": 1}
    assert await hop.in_flight() == ["1"]
    await hop.push_done(SHA1)
    assert late(await hop.counts()) == {"done": 1}


@pytest.mark.parametrize("attempt", [1.5, True, [1], "x", "", "-1", {}], ids=str)
async def test_an_attempt_that_is_no_number_is_a_dead_letter_and_ends_nothing(start: Start, attempt: Any) -> None:
    hop = await start()
    await hop.push(b"hello")
    await hop.push_done({"id": 1, "attempt": attempt})
    assert await hop.in_flight() == ["1"]
    (letter,) = await hop.letters()
    assert (letter["reason"], letter["error"]) == ("badDone", "attempt: expected a whole number, as the record has it")


async def test_an_attempt_in_quotes_is_the_same_number(start: Start) -> None:
    hop = await second_attempt(start)
    await hop.push_done({"id": 1, "attempt": "1"}, {"id": 1, "attempt": "1", "error": "no luck"})
    assert await hop.in_flight() == ["1"]
    assert (await hop.metric("done:late"))["count"] == 2
    await hop.push_done({"id": 1, "attempt": "2"})
    assert await hop.in_flight() == []


async def test_a_done_list_of_another_name_is_the_one_that_counts(start: Start) -> None:
    hop = await start(done="finished")
    await hop.push(b"hello")
    await hop.push_done("1", "{")
    assert late(await hop.counts()) == {"done": 1}
    assert (await hop.letters())[0]["source"] == "finished"


async def test_what_was_adopted_since_an_instance_has_read_its_list_is_carried_out_too(start: Start) -> None:
    hop = await start()
    await hop.push(b"a")
    await hop.redis.lpush("in", b"b")
    assert await hop.dispatch.take()
    await hop.redis.rpush("pending:1", b"adopted")
    await hop.dispatch.deliver()
    assert sorted(await hop.take()) == [b"a", b"adopted", b"b"]
    first, second, third = await hop.in_flight()
    await hop.push_done(first)
    monitor = hop.monitors[0]
    await hop.redis.lpush(hop.keys.done, second)
    assert await monitor.finisher.take(1)
    await hop.redis.rpush(monitor.context.pending(monitor.context.settings.pending_of(hop.keys.namespace)), third)
    await monitor.finisher.deliver()
    assert await hop.in_flight() == []
    assert late(await hop.counts()) == {"done": 3}


async def test_what_a_dead_monitor_has_taken_is_carried_out_once_by_the_next(start: Start) -> None:
    hop = await start()
    await hop.push(b"a", b"b", b"c")
    await hop.redis.lpush(hop.keys.done, "1", "2")
    killed = hop.monitors[0]
    assert await killed.halt("finish.lua", hop.finish())
    assert killed.task
    killed.task.cancel()
    assert await hop.in_flight() == ["1", "2", "3"]
    adopter = Hop(hop.redis)
    adopter.policy = hop.policy
    await adopter.push_done("3")
    assert await hop.in_flight() == []
    assert late(await hop.counts()) == {"done": 3}
    await adopter.monitors[0].finisher.deliver()
    assert late(await hop.counts()) == {"done": 3}


async def test_a_former_active_instance_ends_nothing(start: Start) -> None:
    hop = await start(ordered=True, reply_to="replies")
    await hop.push(b"1000")
    await hop.redis.hset(hop.keys.lease, "token", 2)
    with pytest.raises(Fenced):
        await hop.push_done("1000")
    with pytest.raises(Fenced):
        await hop.answer('{"meta":{"id":1000}}')
    with pytest.raises(Fenced):
        await hop.push(b"1001")
    assert await hop.in_flight() == ["1"]
    assert await hop.counts() == {"taken": 2, "delivered": 1, "registered": 1}
    await hop.redis.hset(hop.keys.lease, "token", 1)
    await hop.monitors[0].finisher.deliver()
    assert await hop.in_flight() == []
    hop.is_sound = False  # the second request is still in hand


async def test_an_id_is_not_counted_among_those_of_that_xid(start: Start) -> None:
    hop = await start()
    await hop.push(b"hello", b"1")
    await hop.push_done_batch({"id": 1}, {"xid": "1"})
    assert (await hop.counts())["done"] == 2
