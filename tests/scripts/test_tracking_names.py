"""Which message a report means: by xid, by id, or by a number that may be either."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.hop import Hop, Start


async def crossed(start: Start, **settings: Any) -> Hop:
    """Return a hop with messages 1, 2 and 3, whose xids are ``2``, ``1`` and ``2``."""
    hop = await start(message_timeout=10, backoff=[5], **settings)
    await hop.push(b"2", b"1", b"2")
    return hop


async def test_a_bare_number_is_an_xid_if_a_message_with_that_xid_is_in_flight(start: Start) -> None:
    """A worker that took payload ``1`` ends it, although the message with id 1 is another one."""
    hop = await crossed(start)
    await hop.push_done("1")
    assert await hop.in_flight() == ["1", "3"]
    assert (await hop.metric("done"))["ambiguous"] == 1
    await hop.push_done("2")
    assert await hop.in_flight() == ["3"]
    assert (await hop.metric("done"))["ambiguous"] == 1, "no message 2 is on record any more"
    await hop.push_done("3")
    assert await hop.in_flight() == []
    metric = await hop.metric("done")
    assert (metric["count"], metric["ambiguous"]) == (3, 1)
    assert await hop.problems() == []


async def test_a_bare_number_that_no_message_has_as_xid_is_an_id(start: Start) -> None:
    hop = await start()
    await hop.push(b"hello", b"12345")
    await hop.push_done("0002", "1", "1")
    assert await hop.in_flight() == []
    metric = await hop.metric("done")
    assert (metric["count"], "ambiguous" in metric) == (2, False)
    assert (await hop.counts())["done:unknown"] == 1


@pytest.mark.parametrize(
    ("entry", "left"), [({"id": 1}, ["2", "3"]), ({"xid": "1"}, ["1", "3"]), ({"xid": 1}, ["1", "3"])]
)
async def test_json_says_whether_it_is_an_id_or_an_xid(start: Start, entry: dict[str, Any], left: list[str]) -> None:
    hop = await crossed(start)
    await hop.push_done(entry)
    assert await hop.in_flight() == left
    assert "ambiguous" not in await hop.metric("done")


@pytest.mark.parametrize(
    ("id", "xid"),
    [
        ("1732652584.123456", "1732652584.123456"),
        ("1732652584.12345600", "1732652584.123456"),
        ("1000.0", "1000"),
        ("1e3", "1000.0"),
        ("1000", "1000.0"),
        ("-0.0", "0"),
        ("-7", "-7.0"),
        ("1e-7", "0.0000001"),
        ("18446744073709551617", "18446744073709551617"),
    ],
)
async def test_numbers_that_json_calls_equal_are_one_xid(start: Start, id: str, xid: str) -> None:
    hop = await start()
    await hop.push(b'{"meta":{"id":%s}}' % id.encode())
    await hop.push_done(f'{{"xid":{xid}}}')
    assert await hop.in_flight() == []
    assert "done:bad" not in await hop.counts()


async def test_numbers_in_one_batch_mean_the_same_as_one_by_one(start: Start) -> None:
    hop = await crossed(start)
    await hop.push_done_batch("2", "2", "2")
    assert await hop.in_flight() == []
    metric = await hop.metric("done")
    assert (metric["count"], metric["ambiguous"]) == (3, 2)
    assert await hop.problems() == []


async def test_a_bare_number_is_an_xid_even_of_a_delayed_or_dead_message(start: Start) -> None:
    """Otherwise a late worker would end a message that it has never seen."""
    hop = await crossed(start, attempts=2)
    await hop.push_done({"id": 3})
    await hop.push_done({"id": 1, "touch": 100})
    await hop.advance(10)
    await hop.sweep()
    assert (await hop.in_flight(), await hop.delayed()) == (["1"], ["2"])
    await hop.push_done("1")
    assert (await hop.in_flight(), await hop.delayed()) == (["1"], [])
    assert await hop.metric("done:late") == {"count": 1, "completed": 1}


async def test_a_bare_number_of_a_dead_message_does_not_end_the_one_with_that_id(start: Start) -> None:
    hop = await crossed(start, attempts=1)
    await hop.push_done({"id": 1, "touch": 100}, {"id": 3, "touch": 100})
    await hop.advance(10)
    await hop.sweep()
    assert [letter["message"] for letter in await hop.letters()] == [b"1"]
    await hop.push_done("1")
    assert await hop.in_flight() == ["1", "3"]
    assert await hop.metric("done:late") == {"count": 1}


@pytest.mark.parametrize(("done_by", "left"), [("either", ["1", "3"]), ("xid", ["1", "3"]), ("id", ["2", "3"])])
async def test_done_by_says_what_plain_text_is(start: Start, done_by: str, left: Sequence[str]) -> None:
    hop = await crossed(start, done_by=done_by)
    await hop.push_done("1")
    assert await hop.in_flight() == left
    assert ("ambiguous" in await hop.metric("done")) == (done_by == "either")
    await hop.push_done("9", "no number")
    assert (await hop.counts()).get("done:unknown") == (1 if done_by == "id" else 2)
    assert len(await hop.letters()) == (1 if done_by == "id" else 0)
