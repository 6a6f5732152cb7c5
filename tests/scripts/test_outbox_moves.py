"""What the service outbox does if it dies, or is refused, between two of its steps."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from common.context import Context
from penstock.base.errors import Refused, WrongType
from penstock.base.keys import Keys
from penstock.outbox import DiskFull, Outbox
from services.outbox.receiving import Receiving
from services.outbox.sending import Sending
from services.outbox.settings import Settings
from tests.outbox.outboxes import Got, outbox, subscribed
from tests.support.harness import eventually
from tests.support.in_process import audited, context_of, running

KEYS = Keys("site")
SETTINGS: dict[str, Any] = {
    "redis": "redis://here",
    "redis_namespace": "site",
    "datadir": "unused",
    "in_": "in",
    "pending": "pending",
    "publish": "rain",
    "out": "out",
    "pop_timeout": 5,
    "unsubscribed": "dead",
}


TOKEN = 7


class Died(Exception):
    pass


@pytest.fixture(autouse=True)
async def lease(redis: "Redis") -> None:
    await redis.hset(KEYS.lease, "token", str(TOKEN))


def active(run: Callable[[Context[Any]], Awaitable[None]]) -> Callable[[Context[Any]], Awaitable[None]]:
    """Return ``run`` of the instance that holds the lease."""

    async def held(context: Context[Any]) -> None:
        context.token = TOKEN
        await run(context)

    return held


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[tuple[Outbox, Got]]:
    """Yield an outbox, and what a subscriber to its rain has got."""
    got = Got()
    async with outbox(tmp_path / "one") as one, outbox(tmp_path / "two") as two:
        two.all(got)
        await subscribed(two, one, "rain")
        yield one, got


@asynccontextmanager
async def sending(redis: "Redis", one: Outbox, **more: Any) -> AsyncIterator[Settings]:
    settings = Settings(**{**SETTINGS, **more})
    async with running(redis, settings, active(lambda context: Sending(context, one).run())):
        yield settings


async def fails(redis: "Redis", one: Outbox, expected: type[Exception], **more: Any) -> None:
    """Send until the run fails as ``expected``."""
    context = context_of(redis, Settings(**{**SETTINGS, **more}))
    context.token = TOKEN
    with pytest.raises(expected):
        await Sending(context, one).run()
    await context.reset()


async def die_before_settling(redis: "Redis", one: Outbox, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Send until a batch is in the outbox, and end before it is settled."""

    async def dies(*_: object) -> bool:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Sending, "_settle", dies)
        await fails(redis, one, Died, **more)


async def until_settled(redis: "Redis") -> None:
    await eventually(lambda: _nothing_left(redis))


async def _nothing_left(redis: "Redis") -> bool:
    return not await redis.exists("in", "pending")


async def test_what_was_stored_before_a_death_is_only_settled(
    redis: "Redis", site: tuple[Outbox, Got], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, got = site
    await redis.lpush("in", "before", "that")
    async with sending(redis, one):
        await until_settled(redis)
    await redis.lpush("in", "a", "a", "b")
    await die_before_settling(redis, one, monkeypatch)
    await redis.lpush("in", "a")
    async with sending(redis, one) as settings:
        await until_settled(redis)
        await got.wait_for("before", "that", "a", "a", "b", "a")
        assert got.texts == ["before", "that", "a", "a", "b", "a"]
    assert await redis.hget(KEYS.metric("delivered"), "count") == b"6"
    assert await redis.hget(KEYS.sequence, "sequence") == b"6"
    assert (await audited(redis, settings)).problems == []


async def test_a_dead_letter_of_a_batch_before_a_death_stays_one(
    redis: "Redis", site: tuple[Outbox, Got], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Somebody subscribes meanwhile: the message was not published, and is not counted as if it was."""
    one, got = site
    by_field = {"publish": None, "publish_field": "k"}
    await redis.lpush("in", '{"k":"snow"}', '{"k":"rain"}')
    await die_before_settling(redis, one, monkeypatch, **by_field)
    async with outbox(tmp_path / "three") as three:
        await subscribed(three, one, "snow")
    async with sending(redis, one, **by_field) as settings:
        await until_settled(redis)
    await got.wait_for('{"k":"rain"}')
    letters: Any = await redis.lrange(KEYS.dead, 0, -1)
    assert ["noSubscriber" in str(letter) for letter in letters] == [True]
    assert (await audited(redis, settings)).problems == []


@pytest.mark.parametrize("left", [[], ["x"], ["b", "a"]])
async def test_other_messages_than_those_that_were_stored_are_published(
    redis: "Redis", site: tuple[Outbox, Got], monkeypatch: pytest.MonkeyPatch, left: list[str]
) -> None:
    """The server has lost its data after the outbox had stored a and b."""
    one, got = site
    await redis.lpush("in", "a", "b")
    await die_before_settling(redis, one, monkeypatch)
    await redis.delete("pending")
    if left:
        await redis.lpush("pending", *left)
    await redis.lpush("in", "c")
    async with sending(redis, one):
        await until_settled(redis)
        await got.wait_for("a", "b", *left, "c")


async def test_a_full_server_settles_later_and_nothing_twice(
    redis: "Redis",
    site: tuple[Outbox, Got],
    monkeypatch: pytest.MonkeyPatch,
    fill: Callable[[], Awaitable[object]],
) -> None:
    one, got = site
    publish_all, was_full = Outbox.publish_all, asyncio.Event()

    async def then_full(self: Outbox, *arguments: Any) -> None:
        await publish_all(self, *arguments)
        if not was_full.is_set():
            was_full.set()
            await fill()

    monkeypatch.setattr(Outbox, "publish_all", then_full)
    await redis.lpush("in", '{"k":"rain"}', '{"k":"fog"}')
    async with sending(redis, one, publish=None, publish_field="k"):
        await was_full.wait()
        await got.wait_for('{"k":"rain"}')
        await redis.config_set("maxmemory", 0)
        await until_settled(redis)
        assert await redis.llen(KEYS.dead) == 1
    await got.wait_for('{"k":"rain"}')


async def test_a_full_disk_leaves_messages_pending(
    redis: "Redis", site: tuple[Outbox, Got], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, got = site
    await redis.lpush("in", "a")

    async def refuses(*_: object) -> None:
        raise DiskFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Outbox, "publish_all", refuses)
        await fails(redis, one, Refused)
    assert await redis.lrange("pending", 0, -1) == [b"a"]
    async with sending(redis, one):
        await got.wait_for("a")


async def test_a_message_that_comes_again_is_pushed_once(redis: "Redis", tmp_path: Path) -> None:
    receiving = Receiving()
    async with outbox(tmp_path / "one") as one, outbox(tmp_path / "two") as two:
        got = Got()
        two.all(got)
        await subscribed(two, one, "rain")
        for text in ("a", "b"):
            await one.publish("rain", text)
        await got.wait_for("a", "b")
    first, second = got.messages
    async with running(redis, Settings(**SETTINGS), active(receiving.run)):
        await receiving.take(first)
        await asyncio.gather(receiving.take(second), receiving.take(first))
    assert await redis.lrange("out", 0, -1) == [bytes(second), bytes(first)]
    assert await redis.hgetall(KEYS.metric("doubled")) == {b"count": b"1", b"out": b"1"}
    assert (await audited(redis, Settings(**SETTINGS))).problems == []


async def test_a_message_waits_until_the_list_is_one_again(redis: "Redis", tmp_path: Path) -> None:
    receiving = Receiving()
    async with outbox(tmp_path / "one") as one, outbox(tmp_path / "two") as two:
        two.all(receiving.take)
        await subscribed(two, one, "rain")
        await redis.set("out", "no list")
        await one.publish("rain", "a")
        context = context_of(redis, Settings(**SETTINGS))
        context.token = TOKEN
        with pytest.raises(WrongType, match="out holds a string"):
            await receiving.run(context)
        await context.reset()
        await redis.delete("out")
        async with running(redis, Settings(**SETTINGS), active(receiving.run)):
            await eventually(lambda: redis.exists("out"))
        assert await redis.lrange("out", 0, -1) == [b"a"]
