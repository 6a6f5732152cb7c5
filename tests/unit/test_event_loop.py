"""The event loop of services: uvloop's where it is installed."""

import asyncio
import sys
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from common.app import fastest_loop
from penstock.core.connection import connect
from penstock.core.raw_connection import RawConnection
from tests.support.harness import eventually


def test_services_run_on_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    uvloop = pytest.importorskip("uvloop")
    monkeypatch.delenv("PENSTOCK_LOOP", raising=False)
    assert fastest_loop() is uvloop.new_event_loop


def test_services_run_on_the_loop_of_asyncio_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert fastest_loop() is asyncio.new_event_loop


def test_an_operator_can_choose_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LOOP", "asyncio")
    assert fastest_loop() is asyncio.new_event_loop


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_that_was_closed_meanwhile_is_lost_on_each_loop(loop: str) -> None:
    factory = pytest.importorskip(loop).new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_use_what_is_closed())


async def _use_what_is_closed() -> None:
    async def say_ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while commands := await reader.read(4_096):
            writer.write(b"+OK\r\n" * commands.count(b"*"))
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(say_ok, "127.0.0.1", 0) as server:
        raw = RawConnection(connect(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        pool: Any = raw.redis.connection_pool
        get = pool.get_connection

        async def get_and_lose() -> Any:
            connection = await get()
            connection._writer.transport.abort()
            await asyncio.sleep(0.01)
            return connection

        pool.get_connection = get_and_lose
        with pytest.raises(ConnectionError, match=r"closed|lost"):
            await raw.send(b"*1\r\n$4\r\nPING\r\n")
        with pytest.raises(ConnectionError, match="closed"):
            await raw.take_over(asyncio.Protocol())
        await raw.redis.aclose()
    await eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()})  # the server's ends are closed, too
