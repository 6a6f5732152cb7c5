"""The supervisor of a run, without a process around it."""

from typing import Any

import pytest
import structlog
from redis.asyncio import Redis

from common.supervision import Supervisor
from penstock.keys import Keys
from services.mpush.settings import Settings
from tests.support.given import LEAST
from tests.support.in_process import context_of


class Deleted:
    """A membership that finds at once that its registration was deleted."""

    deleted = True
    reload_order = None

    async def enter(self, context: object) -> None:
        """Return without a wait: the run is over before anything else looks."""


class Connected:
    async def cut_silent(self) -> None:
        """Cut nothing."""


async def test_a_deletion_that_a_new_run_meets_at_once_ends_the_service(redis: Redis) -> None:
    async def run(_: Any) -> None:
        pytest.fail("it was deleted")

    context = context_of(redis, Settings(**LEAST, redis_namespace="demo"))
    parts: Any = {"connections": Connected(), "membership": Deleted(), "reload": None}
    supervisor = Supervisor(run, **parts, keys=Keys("demo"), log=structlog.get_logger())
    await supervisor.run_once(context)
    assert supervisor.stop.is_set()
    assert context.is_last
