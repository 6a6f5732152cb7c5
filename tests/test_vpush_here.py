"""What vpush reads past its scripts while it settles."""

import asyncio
from functools import partial
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis

from common.context import Context
from common.durability import Durability
from common.trouble import Trouble
from penstock.keys import Keys
from penstock.sizes import CALM
from penstock.wire import Wire
from services.vpush.here import Here
from services.vpush.settings import Settings

KEYS = Keys("demo")
BATCH = 200


class Reading(Here):
    """Counts what was read past the script, and in vain."""

    read = vain = 0

    async def _read(self, first: int, many: int) -> list[bytes]:
        messages = await super()._read(first, many)
        self.read, self.vain = self.read + bool(messages), self.vain + (not messages)
        return messages


async def test_who_reads_past_the_script_waits_for_what_is_being_settled_and_reads_the_right_places(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(
        redis="redis://h",
        redis_namespace="demo",
        in_="in",
        pending="pending",
        out_redis="redis://h",
        out="out",
        batch=BATCH,
    )
    log = structlog.get_logger()
    context = Context(settings, redis, partial(Wire, redis), log, Trouble(log), Durability("memory", 1), keys=KEYS)
    context.token = 7
    await redis.hset(KEYS.lease, "token", 7)
    messages = [b"%d" % number for number in range(3 * BATCH)]
    await redis.lpush("in", *messages)
    here = Reading(context)
    await here.known()
    here.sizes.note(CALM, 3)
    assert await here.take(1) == messages[:BATCH]
    run, done, go_on = context.beside("settling").run, asyncio.Event(), asyncio.Event()

    async def answers_late(*script: Any, **named: Any) -> Any:
        settled = await run(*script, **named)
        done.set()
        await go_on.wait()
        return settled

    monkeypatch.setattr(context.beside("settling"), "run", answers_late)
    settling = asyncio.create_task(here.settle(BATCH, []))
    await done.wait()  # by the server; nobody here was told
    taking = asyncio.create_task(here.take(BATCH + 1))
    await asyncio.wait({taking}, timeout=0.1)
    go_on.set()
    assert await taking == messages[BATCH : 2 * BATCH]
    await settling
    assert await here.take(2 * BATCH + 1) == messages[2 * BATCH :]
    assert (here.read, here.vain) == (2, 0)
    await context.reset()
