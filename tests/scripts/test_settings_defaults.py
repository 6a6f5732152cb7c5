"""Services that declare only fields: the derived defaults are right, or the settings are refused."""

import os
import signal
from typing import ClassVar

import pytest
from redis.asyncio import Redis

from common.context import Context
from common.process import Process
from common.settings.base import ServiceSettings
from common.settings.fields import Name, PopTimeout, setting
from penstock.base.errors import WrongCall
from penstock.base.keys import Keys


class Settings(ServiceSettings):
    service: ClassVar[str] = "bare"

    in_: Name = setting("name", "The list that publishers push to.", "in")
    pending: Name = setting("name", "The list of messages in hand.", "pending")
    pop_timeout: PopTimeout = setting("seconds", "Longest wait.", 12)


def test_the_longest_wait_is_that_of_the_field() -> None:
    assert Settings(redis="redis://h").longest_wait == 12
    assert Settings(redis="redis://h", durability="aof", durability_timeout=20).longest_wait == 20


async def test_a_pending_list_that_nobody_would_adopt_is_refused(redis: Redis, redis_url: str) -> None:
    refused: list[str] = []

    async def run(context: Context[Settings]) -> None:
        with pytest.raises(WrongCall) as caught:
            context.pending(context.settings.pending)
        refused.append(str(caught.value))
        os.kill(os.getpid(), signal.SIGTERM)
        await context.pause(10)

    settings = Settings(redis=redis_url, redis_namespace="demo")
    assert await Process(settings, run).serve() == 0
    assert refused == ["pending is not among the pending_lists of the settings: nobody would adopt what it holds"]


@pytest.mark.parametrize("namespace", [None, "demo"])
async def test_a_service_without_lists_of_its_own_runs_and_leaves(
    redis: Redis, redis_url: str, namespace: str | None
) -> None:
    seen: list[int] = []

    async def run(context: Context[Settings]) -> None:
        seen.append(await redis.exists(Keys("demo").instance("1")))
        os.kill(os.getpid(), signal.SIGTERM)
        await context.pause(10)

    settings = Settings(redis=redis_url, redis_namespace=namespace)
    assert await Process(settings, run).serve() == 0
    assert seen == [int(namespace is not None)]
    assert not await redis.exists(Keys("demo").instance("1"))
