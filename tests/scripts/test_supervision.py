"""The supervisor of a run, without a process around it."""

from collections.abc import Callable
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis
from structlog.testing import capture_logs

from common.membership import Membership
from common.supervision import CHECK_SECONDS, Supervisor
from penstock.base.errors import WrongType
from penstock.base.keys import Keys
from services.mpush.service import run as run_mpush
from services.mpush.settings import Settings
from tests.support.given import LEAST, made
from tests.support.harness import eventually
from tests.support.in_process import context_of, running
from tests.support.membership import KEYS, settings


class Deleted:
    """A membership that finds at once that its registration was deleted."""

    deleted = True
    gone = "deleted"
    reload_order = None

    async def enter(self, context: object) -> None:
        """Return without a wait: the run is over before anything else looks."""


class Connected:
    async def cut_silent(self) -> None:
        """Cut nothing."""


async def test_the_registration_says_what_an_instance_waits_for_and_that_it_waits_no_longer(redis: Redis) -> None:
    """The supervisor checks every 1.5 s, much more often than a registration is renewed."""
    log = structlog.get_logger()
    context = context_of(redis, settings())
    membership = Membership(redis, redis, KEYS, settings(), log)

    async def said() -> object:
        assert await membership.check(context)
        return await redis.hget(KEYS.instance("1"), "waiting")

    await membership.enter(context)
    assert await said() is None
    troubles: list[tuple[Callable[[], object], Callable[[], object], bytes]] = [
        (lambda: context.outage.begins(WrongType("a holds a set")), context.outage.over, b"a holds a set"),
        (lambda: context.block("full: b"), lambda: context.block(""), b"full: b"),
    ]
    for begin, end, reason in troubles:
        begin()
        assert await said() == reason
        end()
        assert await said() is None
    assert CHECK_SECONDS < 2
    await membership.leave()


async def test_a_fan_out_waits_for_the_list_that_is_full(redis: Redis) -> None:
    await redis.lpush("in", 1, 2, 3)
    with capture_logs() as logs:
        async with running(redis, made(redis_namespace="demo", max_length=2), run_mpush) as context:
            await eventually(lambda: context.trouble == "full: a")
            await redis.delete("a", "b")
            await eventually(lambda: context.trouble == "")
    lines = [(each["event"], each.get("reason", "")) for each in logs if each["event"] in ("waiting", "resumed")]
    assert lines == [("waiting", "full: a"), ("resumed", "")]


async def test_a_deletion_that_a_new_run_meets_at_once_ends_the_service(redis: Redis) -> None:
    async def run(_: Any) -> None:
        pytest.fail("it was deleted")

    context = context_of(redis, Settings(**LEAST, redis_namespace="demo"))
    parts: Any = {"connections": Connected(), "membership": Deleted(), "reload": None}
    supervisor = Supervisor(run, **parts, keys=Keys("demo"), log=structlog.get_logger())
    await supervisor.run_once(context)
    assert supervisor.stop.is_set()
    assert context.is_last
