"""Nothing times out of which a report waits to be carried out: in ``res``, in ``done``, or in hand of who has died."""

import json
from typing import Any

import pytest

from services.monitor import reports
from tests.support.hop import Hop, Start

DONE = b'{"xid": "a"}'


def request(id: Any, **meta: Any) -> bytes:
    return json.dumps({"meta": {"id": id, **meta}}).encode()


async def overdue(start: Start, **settings: Any) -> Hop:
    """Return a hop with the requests a and b, both past their deadline."""
    hop = await start(message_timeout=10, attempts=1, message_expire=30, **settings)
    await hop.push(request("a", replyTo="to:a"), request("b", replyTo="to:b"))
    await hop.advance(11)
    return hop


WAITING = [
    ("res", request("a")),
    ("res", b'{"meta": {"id": "a", "attempt": 1}, "body": "' + b"x" * 100_000 + b'"}'),
    ("pending:answers:7", request("a")),
    ("demo:done", DONE),
    ("demo:done", b"a"),
    ("demo:done", b"1"),
    ("demo:done", b'{"id": 1}'),
    ("demo:done", b'{"xid": "a", "error": "no tea"}'),
    ("watcher:pending:demo:7", DONE),
]


@pytest.mark.parametrize(("name", "entry"), WAITING, ids=lambda word: str(word)[:40])
async def test_what_is_reported_does_not_time_out_and_all_else_does(start: Start, name: str, entry: bytes) -> None:
    hop = await overdue(start)
    if name.startswith("watcher"):
        pending = hop.monitors[0].context.settings.pending_of("demo")
        name = f"{pending}:7"
        await hop.redis.zadd("watcher:owners", {"7": 1})
    await hop.redis.zadd(hop.keys.owners, {"7": 1})
    await hop.redis.lpush(name, b"unreadable", entry)
    for _ in range(4):
        await hop.sweep()
        await hop.advance(10)
    assert await hop.in_flight() == ["1"]
    assert [letter["id"] for letter in await hop.letters()] == ["2"]
    assert (await hop.record(1))["xid"] == "a", "its record outlives the wait"
    assert (await hop.chain("a"))["id"] == "1"


async def test_an_answer_that_waited_for_mdispatch_reaches_its_client(start: Start) -> None:
    hop = await overdue(start)
    await hop.redis.lpush("res", request("a"))
    for _ in range(4):
        await hop.sweep()
        await hop.advance(10)
    await hop.answer(request("unknown"))
    assert await hop.held("to:a") == [request("a")]
    assert (await hop.counts())["dead"] == 1
    assert await hop.in_flight() == []


async def test_once_the_reports_are_carried_out_what_they_did_not_end_times_out(start: Start) -> None:
    hop = await overdue(start)
    await hop.redis.lpush("demo:done", b'{"id": 1, "attempt": 9}', b'{"xid": "other"}')
    await hop.sweep()
    assert await hop.in_flight() == ["1"]
    await hop.redis.delete("demo:done")
    await hop.advance(5)
    await hop.sweep()
    assert await hop.in_flight() == []


@pytest.mark.parametrize("bound", ["MAX_REPORTS", "MAX_BYTES"])
async def test_of_too_many_reports_to_read_each_message_may_be_meant(
    start: Start, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = await overdue(start)
    monkeypatch.setattr(reports, bound, 1)
    await hop.redis.lpush("res", request("x"), request("y"))
    await hop.sweep()
    assert await hop.in_flight() == ["1", "2"]
    await hop.redis.delete("res")
    await hop.advance(5)
    await hop.sweep()
    assert await hop.in_flight() == []


async def test_many_that_are_reported_hold_up_nobody_behind_them(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=1)
    await hop.push(*(request(f"a{number}") for number in range(700)), request("b"))
    await hop.redis.lpush("res", *(request(f"a{number}") for number in range(700)))
    await hop.advance(11)
    await hop.sweep()
    assert [letter["xid"] for letter in await hop.letters()] == ["b"]
    assert len(await hop.in_flight()) == 700


async def test_a_failed_attempt_is_tried_again_though_older_reports_wait(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=2, backoff_base=0)
    await hop.push(request("a"))
    await hop.push_done({"xid": "a", "error": "no tea"})
    await hop.redis.lpush("res", request("a"))
    await hop.sweep()
    assert (await hop.counts())["retry"] == 1
