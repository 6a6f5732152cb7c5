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


@pytest.mark.parametrize(("done_by", "left"), [("either", ["1", "3"]), ("xid", ["1", "3"]), ("id", ["2", "3"])])
async def test_done_by_says_what_plain_text_is(start: Start, done_by: str, left: Sequence[str]) -> None:
    hop = await crossed(start, done_by=done_by)
    await hop.push_done("1")
    assert await hop.in_flight() == left
    assert ("ambiguous" in await hop.metric("done")) == (done_by == "either")
    await hop.push_done("9", "no number")
    assert (await hop.counts()).get("done:unknown") == (1 if done_by == "id" else 2)
    assert len(await hop.letters()) == (1 if done_by == "id" else 0)
