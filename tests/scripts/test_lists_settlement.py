"""``penstock.lists``: a settlement that fails is raised, however the loop is left."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from penstock import sync
from penstock.base.errors import Unavailable, WrongType
from penstock.lists import Lists
from penstock.testing.server import EmbeddedServer

Cause = Callable[["Redis", str], Any]
WAYS: Final = "break", "return", "error", "stop", "signal", "aclose", "at its own end"


@asynccontextmanager
async def wrong_type(redis: "Redis", url: str) -> AsyncIterator[str]:
    await redis.set("bills", "oops")
    yield url


@asynccontextmanager
async def no_permission(redis: "Redis", url: str) -> AsyncIterator[str]:
    await redis.execute_command("ACL", "SETUSER", "clerk", "on", ">x", "~orders*", "&*", "+@all")
    yield url.replace("redis://", "redis://clerk:x@")
    await redis.execute_command("ACL", "DELUSER", "clerk")


@asynccontextmanager
async def full(redis: "Redis", url: str) -> AsyncIterator[str]:
    await redis.config_set("maxmemory", 1)
    yield url
    await redis.config_set("maxmemory", 0)


CAUSES: Final = (wrong_type, WrongType), (no_permission, NoPermissionError), (full, Unavailable)


def leave(way: str, lists: Any) -> None:
    """Do what ends the loop after the message in hand."""
    if way in ("stop", "at its own end"):
        lists.stop()
    elif way == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    elif way == "error":
        raise LookupError


async def handle_one(lists: Lists, way: str) -> None:
    loop = lists["orders"].messages()
    async for message in loop:
        with message:
            message.also_push("bills", message.body)
            if way == "at its own end":
                lists.stop()
        leave(way, lists)
        if way == "return":
            return
        if way == "aclose":
            await loop.aclose()  # type: ignore[attr-defined]
        if way == "break":
            break


def handle_one_plainly(lists: sync.Lists, way: str) -> None:
    loop = lists["orders"].messages()
    for message in loop:
        with message:
            message.also_push("bills", message.body)
        leave(way, lists)
        if way == "return":
            return
        if way == "aclose":
            loop.close()  # type: ignore[attr-defined]
        if way == "break":
            break


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("cause", "error"), CAUSES)
async def test_it_is_raised_and_the_message_goes_back(
    redis: "Redis", redis_url: str, cause: Cause, error: type[Exception], way: str, *, blocking: bool
) -> None:
    await redis.lpush("orders", "a")
    options: dict[str, Any] = {"patience": 0.1, "stop_signals": [signal.SIGTERM]}
    async with cause(redis, redis_url) as url:
        if blocking:
            with pytest.raises(error), sync.Lists(url, **options) as plain:
                handle_one_plainly(plain, way)
        else:
            with pytest.raises(error):
                async with Lists(url, **options) as lists:
                    await handle_one(lists, way)
    assert await redis.lrange("orders", 0, -1) == [b"a"]
    assert not [key async for key in redis.scan_iter("orders:*")]


async def test_the_next_loop_over_the_list_raises_it_and_the_one_after_goes_on(redis: "Redis", redis_url: str) -> None:
    await redis.lpush("orders", "a")
    async with Lists(redis_url) as lists:
        async with wrong_type(redis, redis_url):
            await handle_one(lists, "break")
        with pytest.raises(WrongType, match="bills holds a string"):
            await handle_one(lists, "break")
        await redis.delete("bills")
        await handle_one(lists, "break")
    assert await redis.lrange("bills", 0, -1) == [b"a"]


async def test_what_a_server_that_went_away_cannot_settle_is_told() -> None:
    async def handle(server: EmbeddedServer) -> None:
        async with Lists(server.url, patience=0.1) as lists:
            await lists["orders"].push("a")
            async for message in lists["orders"].messages():
                with message:
                    server.stop()
                break

    with EmbeddedServer() as server, pytest.raises(Unavailable) as raised:
        await handle(server)
    assert "come again: 1 of orders" in raised.value.__notes__[0]
