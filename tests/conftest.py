"""Fixtures for all tests: an embedded server, an empty client of it, and a tracked hop."""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from functools import partial
from typing import Any

import pytest
import redis as sync
import structlog
from _pytest.unraisableexception import collect_unraisable
from hypothesis import settings
from redis.asyncio import Redis
from xdist.remote import Producer

from penstock.core.connection import cancellable
from penstock.testing.server import EmbeddedServer
from tests.parts import is_slow
from tests.support.harness import PATIENCE
from tests.support.hop import Hop, Start
from tests.support.scheduling import SparkInTwoWorkers

settings.register_profile("penstock", deadline=None)  # a busy machine takes longer: time is measured in benchmarks
settings.load_profile("penstock")
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:  # under nohup: processes that tests start would ignore it, too
        signal.signal(_number, _usual)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of the slow folders as slow, and those that need a tool of their own."""
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Let a warning of what a test has left unclosed be its own, and not that of a later test that collects garbage."""
    yield
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):  # they keep what a red test has used
        vars(sys).pop(name, None)
    gc.collect()
    gc.freeze()  # what is left lives on: the next test need not look through it again
    collect_unraisable(item.config)


@pytest.fixture(autouse=True)
def as_unconfigured() -> Iterator[None]:
    """Let a test that configures structlog, as ``capture_logs`` does, not take the logs of later ones from logging."""
    before = structlog.is_configured()
    yield
    if structlog.is_configured() and not before:
        structlog.reset_defaults()


def pytest_configure(config: pytest.Config) -> None:
    """Let a worker end with the process that distributes the tests, though it is in the middle of one."""
    if hasattr(config, "workerinput"):
        threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)  # the watchdogs of what it has started see that


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkInTwoWorkers | None:
    return SparkInTwoWorkers(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """Yield one server for all tests that do not break it; ``redis`` and ``here`` empty it first."""
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def redis_url(server: EmbeddedServer) -> str:
    return server.url


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator["Redis"]:
    async with cancellable(Redis.from_url(redis_url, socket_timeout=PATIENCE)) as client:
        await client.flushall()
        yield client


@pytest.fixture
async def fill(redis: "Redis") -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Yield a function that fills the server's memory until the test ends."""
    yield partial(redis.config_set, "maxmemory", 1)
    await redis.config_set("maxmemory", 0)


@pytest.fixture
def here(redis_url: str) -> Iterator[Any]:
    """Yield a synchronous client of the server, emptied first."""
    with sync.Redis.from_url(redis_url, socket_timeout=PATIENCE) as client:
        client.flushall()
        yield client


@pytest.fixture
async def start(redis: "Redis") -> AsyncIterator[Start]:
    """Yield a function that starts mdispatch and monitors without their loops.

    At the end of the test, the audit must find no problem with any that is to be sound.
    """
    hops = list[Hop]()

    async def started(monitors: int = 1, **settings: Any) -> Hop:
        hops.append(await Hop(redis, monitors, **settings).start())
        return hops[-1]

    yield started
    for hop in hops:
        assert not hop.is_sound or await hop.problems() == []
