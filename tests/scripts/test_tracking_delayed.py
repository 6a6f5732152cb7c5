"""Messages with a delayed delivery, and retries after a back-off."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.clock import Span
from tests.support.harness import PATIENCE
from tests.support.hop import Start


def request(**meta: Any) -> bytes:
    return json.dumps({"meta": {"id": "a", **meta}}).encode()


@pytest.mark.parametrize(
    "when",
    [
        lambda moment: moment.timestamp(),
        lambda moment: int(moment.timestamp()),
        lambda moment: moment.isoformat(),
        lambda moment: moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        lambda moment: moment.astimezone(None).isoformat(),
    ],
    ids=["seconds", "whole seconds", "ISO 8601", "Z", "another zone"],
)
async def test_a_message_may_name_the_moment_of_its_delivery(start: Start, when: Any) -> None:
    hop = await start()
    moment = datetime.fromtimestamp(await hop.now(), UTC) + timedelta(seconds=500)
    await hop.push(request(deliverAt=when(moment)))
    at = moment.timestamp()
    assert await hop.redis.zscore(hop.keys.delayed, "1") == Span(int(at), at), "some forms have whole seconds"
    assert 500 < await hop.redis.ttl(hop.keys.message("1")) <= 560


@pytest.mark.parametrize(
    "meta",
    [
        {"delay": 0},
        {"delay": 0.0},
        {"deliverAt": 0},
        {"deliverAt": "2001-01-01T00:00:00Z"},
        {"delay": None},
        {"deliverAt": None},
        {"delay": 0, "deliverAt": "nonsense"},
    ],
    ids=str,
)
async def test_what_is_due_already_is_delivered_at_once(start: Start, meta: dict[str, Any]) -> None:
    hop = await start()
    await hop.push(request(**meta))
    assert (await hop.held(), await hop.delayed()) == ([request(**meta)], [])
    assert (await hop.record(1))["attempt"] == "1"


@pytest.mark.parametrize(
    "meta",
    [
        *({"delay": delay} for delay in (-1, "5", True, float("nan"), float("inf"), 315_360_001, 10**400)),
        *({"deliverAt": at} for at in (-1, True, float("nan"), float("inf"), 1e11, 10**400)),
        *({"deliverAt": at} for at in ("", "soon", "2030-01-01T00:00:00", "2030-13-01T00:00:00Z", "9" * 400)),
        {"delay": []},
        {"deliverAt": {}},
        *({"attempts": many} for many in (0, -1, 101, 1.0, "1", True)),
        {"attempts": {}},
    ],
    ids=lambda meta: str(meta)[:32],
)
async def test_a_wish_that_is_none_makes_a_dead_letter_that_says_so(start: Start, meta: dict[str, Any]) -> None:
    hop = await start()
    began = await hop.now()
    await hop.push(b"before", request(**meta), b"after")
    assert await hop.held() == [b"before", b"after"]
    (letter,) = await hop.letters()
    (name,) = meta
    assert letter["error"].startswith(f"meta.{name}: expected ")
    assert letter.pop("at") / 1000 == Span(began, await hop.now())
    assert letter == {
        "message": request(**meta),
        "reason": "badRequest",
        "error": letter["error"],
        "source": "in",
        "queue": "out",
        "attempts": 0,
        "service": "1",
    }
    assert await hop.metric("dead") == {"count": 1, "badRequest": 1}
    assert await hop.counts() == {"taken": 3, "delivered": 2, "registered": 2, "dead": 1}
    assert not await hop.redis.exists(hop.keys.message("2"))


async def test_what_falls_due_first_is_announced(start: Start) -> None:
    hop = await start(message_timeout=100, message_expire=10_000)
    began = await hop.now()
    async with hop.redis.pubsub() as news:
        await news.subscribe(hop.keys.due)
        await hop.push(b"first")
        await hop.push(b"second")
        await hop.push(request(delay=1000))
        await hop.push(request(delay=50))
        await hop.push_done({"id": 2, "error": "no luck"})
        pushed = Span(began, await hop.now())
        heard = list[float]()
        async with asyncio.timeout(PATIENCE):
            while len(heard) < 4:
                message = await news.get_message(timeout=None)
                heard += [float(message["data"])] if message["type"] == "message" else []
    looks = pushed + 10  # the check whether it has been taken, after a tenth of messageTimeout
    assert heard == [looks, pushed + 1000, pushed + 50, pushed]


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({"backoff": [1, 5, 30], "attempts": 5}, [(1, 1), (5, 5), (30, 30), (30, 30)]),
        ({"backoff_base": 2, "backoff_cap": 7, "attempts": 5}, [(1, 2), (2, 4), (3.5, 7), (3.5, 7)]),
    ],
    ids=["a list", "exponential, with jitter and a cap"],
)
async def test_each_retry_waits_for_its_back_off(
    start: Start, settings: dict[str, Any], waits: list[tuple[float, float]]
) -> None:
    hop = await start(message_timeout=10, message_expire=1000, **settings)
    await hop.push(*[b"hello"] * 20)
    for least, most in waits:
        await hop.advance(10)
        began = await hop.now()
        await hop.sweep()
        now = await hop.now()
        due = [score - began for _, score in await hop.redis.zrange(hop.keys.delayed, 0, -1, withscores=True)]
        assert least <= min(due) <= max(due) <= most + now - began
        assert (max(due) - min(due) > 0.01) == (least < most)
        await hop.advance(31)
        await hop.sweep()
        assert len(await hop.in_flight()) == 20


async def test_without_a_back_off_a_message_is_tried_again_at_once(start: Start) -> None:
    hop = await start(message_timeout=10, backoff_base=0)
    await hop.push(b"hello")
    await hop.advance(10)
    await hop.sweep()
    assert (await hop.held(), await hop.in_flight(), await hop.delayed()) == ([b"hello"] * 2, ["1"], [])
    assert (await hop.counts()).items() >= {"timeout": 1, "retry": 1}.items()
