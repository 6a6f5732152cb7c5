"""The script that pushes the requests of one turn of the loop."""

from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

import services.himporter.bridge
from penstock.base.errors import WrongType
from penstock.core.script import Script

_push = Script.read(Path(services.himporter.bridge.__file__).parent / "lua" / "push.lua")
METRICS = ("taken", "settled", "delivered")


async def push(redis: "Redis", messages: list[bytes], large: int = 0) -> Any:
    return await _push(redis, out="out", large=large, messages=messages, **{metric: metric for metric in METRICS})


@pytest.mark.parametrize("many", [1, 1_000, 2_500])
async def test_messages_are_pushed_in_order_and_counted(redis: "Redis", many: int) -> None:
    messages = [b"%d" % number for number in range(many)]
    assert await push(redis, messages) == many
    assert await redis.lrange("out", 0, -1) == messages[::-1]
    count = str(many).encode()
    for metric in ("taken", "delivered"):
        assert await redis.hgetall(metric) == {b"count": count, b"out": count}
    assert await redis.hgetall("settled") == {b"count": count}


@pytest.mark.parametrize("key", METRICS)
async def test_what_the_transaction_has_pushed_is_taken_back_if_it_cannot_be_counted(redis: "Redis", key: str) -> None:
    await redis.set(key, "x")
    await redis.lpush("out", "before", "first", "second")
    with pytest.raises(WrongType, match=f"^{key} holds a string"):
        await push(redis, [], large=2)
    assert await redis.lrange("out", 0, -1) == [b"before"]


async def test_what_the_transaction_has_pushed_is_counted(redis: "Redis") -> None:
    assert await push(redis, [], large=2) == 2
    assert await redis.hgetall("delivered") == {b"count": b"2", b"out": b"2"}
