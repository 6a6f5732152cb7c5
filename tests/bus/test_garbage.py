"""What others have written into a queue's keys: ids, times to live and notifications that are none."""

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import PenstockError, WrongType
from penstock.bus import Bus
from penstock.core.pace import Pace
from tests.bus.given import attached, settled, take
from tests.support.harness import eventually

MESSAGES, TOACK, METADATA, MSGID = (f"bus:queue:foo:{each}" for each in ("messages", "toack", "metadata", "msgid"))
IDS = ["abc", "-5", "nan", "1e400", "0", "0x10", " 7", "", "9007199254740993"]


@pytest.mark.parametrize("mode", [{}, {"reliable": True}, {"remove": False}], ids=str)
@pytest.mark.parametrize("id_", IDS)
async def test_a_message_without_an_id_is_handed_out_once_and_hides_no_other(
    bus: Bus, redis: "Redis", id_: str, mode: dict[str, Any]
) -> None:
    queue, got = await attached(bus, "one"), list[tuple[int, bytes]]()
    await redis.rpush(MESSAGES, id_, "lie")
    queue.on("message", lambda message: got.append((message.id, message.body)))
    await queue.consume(**mode)
    await eventually(lambda: len(got) == 2)
    quiet = await settled(redis)
    await queue.push("later")
    await eventually(lambda: len(got) == 3)
    assert await settled(redis) <= quiet + 3
    async with asyncio.timeout(30):
        await queue.stop()
    assert got == [(1, b"one"), (0, b"lie"), (2, b"later")]


@pytest.mark.parametrize("id_", IDS)
async def test_an_unacknowledged_message_without_an_id_comes_again_once(bus: Bus, redis: "Redis", id_: str) -> None:
    queue = await attached(bus)
    await redis.rpush(TOACK, id_, "lie")
    await queue.push("one")
    async with asyncio.timeout(30):
        assert await take(queue, 2, reliable=True) == [(0, b"lie"), (1, b"one")]
    assert await redis.lrange(TOACK, 0, -1) == [b"1", b"one"]
    assert await queue.count() == 0


async def test_what_has_no_id_goes_back_if_it_is_not_handed_out(
    bus: Bus, redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pace, "size", lambda _: 10)
    queue = await attached(bus, "one")
    await redis.rpush(MESSAGES, "abc", "lie", "2", "two")
    consumption = queue.consume(reliable=True)
    await consumption.fetch()
    assert len(consumption.claim.messages) == 3
    await queue.stop()
    assert await redis.lrange(MESSAGES, 0, -1) == [b"1", b"one", b"2", b"two", b"0", b"lie"]
    assert not await redis.exists(TOACK)


@pytest.mark.parametrize("ttl", ["1e30", "inf", "nan", "1e16", "99999999999999999999", "abc", "-1", "0.5", ""])
async def test_a_bad_ttl_is_found_before_the_first_write(bus: Bus, redis: "Redis", ttl: str) -> None:
    queue = await attached(bus, "one")
    await redis.hset(METADATA, "ttl", ttl)
    with pytest.raises(PenstockError):
        await queue.push("two")
    assert await redis.lrange(MESSAGES, 0, -1) == [b"1", b"one"]
    assert await bus.queue("foo").attach(ttl=9) is False
    assert await redis.hget(METADATA, "ttl") == b"9"
    assert 0 < await redis.ttl(METADATA) <= 9


@pytest.mark.parametrize("msgid", ["abc", "-7", "9007199254740992", "9223372036854775807", "1.5"])
async def test_an_id_that_can_not_go_on_is_refused(bus: Bus, redis: "Redis", msgid: str) -> None:
    queue = await attached(bus)
    await redis.set(MSGID, msgid)
    with pytest.raises(WrongType, match="msgid"):
        await queue.push("a")
    assert not await redis.exists(MESSAGES)


@pytest.mark.parametrize("payload", ["7", "1", "abc", "1e400", "-1"])
@pytest.mark.parametrize("mode", [{"reliable": True}, {"remove": False}], ids=str)
async def test_a_notification_only_wakes(bus: Bus, redis: "Redis", mode: dict[str, Any], payload: str) -> None:
    queue, got = await attached(bus, *"12345"), list[int]()
    queue.on("message", lambda message: got.append(message.id))
    await queue.consume(**mode)
    await eventually(lambda: len(got) == 5)
    for _ in range(3):
        await redis.publish(queue.available, payload)
        await settled(redis)
    await queue.push("6")
    await eventually(lambda: len(got) == 6)
    await settled(redis)
    assert got == [1, 2, 3, 4, 5, 6]


async def test_a_reader_begins_again_if_ids_did_while_it_was_away(bus: Bus, redis: "Redis") -> None:
    queue, got = await attached(bus, *"abc"), list[bytes]()
    queue.on("message", lambda message: got.append(message.body))
    await queue.consume(remove=False)
    await eventually(lambda: len(got) == 3)
    async with redis.pipeline() as anew:
        anew.client_kill_filter(_type="pubsub")
        anew.set(MSGID, 5)
        anew.delete(MESSAGES)
        anew.rpush(MESSAGES, *"1d2e3f4g5h")
        await anew.execute()
    await eventually(lambda: len(got) == 8)
    assert b"".join(got) == b"abcdefgh"


async def test_a_foreign_key_is_not_deleted(bus: Bus, redis: "Redis") -> None:
    queue = await attached(bus)
    await redis.sadd(MESSAGES, "precious")
    for call in (queue.flush, queue.close):
        with pytest.raises(WrongType):
            await call()
    assert await redis.smembers(MESSAGES) == {b"precious"}
