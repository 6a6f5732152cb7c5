"""Outcomes of hqueue's tasks in the server: one instance has each for a time, and only for the life that it is of."""

import json
from typing import Any

import pytest

from penstock.core.script import Script
from services.hqueue.store import LUA

MEMBER = b"7 shop/resize"


@pytest.mark.parametrize(("span", "others"), [("60.000", []), ("-1.000", [MEMBER])])
async def test_an_outcome_is_of_one_instance_until_its_time_is_over(redis: Any, span: str, others: list[bytes]) -> None:
    claim = Script.read(LUA / "claim.lua")
    await redis.zadd("outbox", {MEMBER: 1})
    _, found = await claim(redis, outbox="outbox", most=10, span=span)
    assert found == [MEMBER]
    _, found = await claim(redis, outbox="outbox", most=10, span="60.000")
    assert found == others


@pytest.mark.parametrize(("turn", "word", "delivery"), [(0, b"over", "waiting"), (1, b"done", "done")])
async def test_an_outcome_of_a_former_life_does_not_settle_that_of_the_next(
    redis: Any, turn: int, word: bytes, delivery: str
) -> None:
    task = {"ended": 1e12, "round": 1, "delivery": "waiting"}
    await redis.hset("tasks", "7", json.dumps(task))
    await redis.zadd("outbox", {MEMBER: 1})
    sent = Script.read(LUA / "sent.lua")
    keys = {"tasks": "tasks", "outbox": "outbox", "outcomes": "outcomes", "news": "news"}
    call = {"id": "7", "queue": "shop/resize", "round": turn, "outcome": "sent", "wait": "1.000", "patience": 60}
    assert await sent(redis, **keys, **call) == word
    assert json.loads(await redis.hget("tasks", "7"))["delivery"] == delivery
    assert await redis.zcard("outbox") == (word == b"over")
