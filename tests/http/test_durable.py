"""Requests that get 202 once they are on the server's disk, or on its replicas."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.core.connection import cancellable
from penstock.testing.server import EmbeddedServer
from tests.http.clients import Client
from tests.http.importing import KEYS, OUT, Importing, importing

ACCEPT = b"POST /reports/1 HTTP/1.1\r\nHost: a\r\nPrefer: respond-async\r\nContent-Length: 1\r\n\r\nx"
GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"


@asynccontextmanager
async def on(server: EmbeddedServer, **settings: Any) -> AsyncIterator[Importing]:
    async with cancellable(Redis.from_url(server.url)) as redis, importing(redis, server.url, **settings) as here:
        yield here


async def statuses(client: Client, times: int) -> list[int]:
    return [(await client.ask(ACCEPT)).status for _ in range(times)]


async def calls(redis: "Redis", command: str) -> int:
    found: Any = await redis.info("commandstats")
    return int(found.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def skip_without_waitaof(redis: "Redis") -> None:
    try:
        await redis.execute_command("WAITAOF", 0, 0, 0)
    except ResponseError:
        pytest.skip("the server has no WAITAOF")


async def test_a_request_is_accepted_once_the_disk_has_it_also_after_a_restart_of_the_server() -> None:
    with EmbeddedServer(aof=True) as server:
        async with on(server, durability="aof") as here, here.connect() as client:
            await skip_without_waitaof(here.redis)
            assert await statuses(client, 3) == [202] * 3
            assert await calls(here.redis, "waitaof") == 5  # one by the test, one more for NOSCRIPT
            await here.redis.script_flush()
            assert await statuses(client, 1) == [202]
            server.kill()
            server.start()
            await here.redis.connection_pool.disconnect()
            async with asyncio.timeout(30):
                while (await client.ask(ACCEPT)).status != 202:
                    await asyncio.sleep(0.05)
            assert await here.redis.llen(OUT) >= 5


@pytest.fixture
async def pair() -> AsyncIterator[tuple[EmbeddedServer, EmbeddedServer]]:
    with EmbeddedServer(repl_diskless_sync_delay="0") as primary, EmbeddedServer() as replica:
        async with cancellable(Redis.from_url(replica.url)) as second:
            await second.execute_command("REPLICAOF", "127.0.0.1", primary.port)
            async with asyncio.timeout(30):
                while (await second.info("replication")).get("master_link_status") != "up":
                    await asyncio.sleep(0.05)
        yield primary, replica


@pytest.mark.parametrize("level", ["replicas:1", "replicas:majority"])
async def test_202_waits_for_a_replica_and_nothing_else_waits(
    pair: tuple[EmbeddedServer, EmbeddedServer], level: str
) -> None:
    primary, replica = pair
    async with on(primary, durability=level, durability_timeout=30) as here, here.connect() as client:
        assert await statuses(client, 2) == [202] * 2
        os.kill(replica.pid, signal.SIGSTOP)
        try:
            waiting = asyncio.create_task(client.ask(ACCEPT))
            async with asyncio.timeout(30):
                while await here.redis.llen(OUT) < 3:
                    await asyncio.sleep(0.01)
            await here.redis.delete(OUT)
            async with here.connect() as other:
                await other.send(GET)
                await here.answer(await here.request(), body="at once")
                assert (await other.answer()).body == b"at once"
            assert not waiting.done()
        finally:
            os.kill(replica.pid, signal.SIGCONT)
        assert (await waiting).status == 202


async def test_a_request_that_is_not_confirmed_in_time_is_503_and_says_where_it_may_be() -> None:
    with EmbeddedServer() as server:
        async with on(server, durability="replicas:1", durability_timeout=1) as here, here.connect() as client:
            began = time.monotonic()
            answer = await client.ask(ACCEPT)
            assert answer.status == 503
            assert time.monotonic() - began > 0.9
            request = await here.request()
            assert answer.header("location") == f"/_requests/{request['id']}"
            await here.answer(request, body="done")
            done = await client.ask(f"GET {answer.header('location')}/answer HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            assert done.body == b"done"


async def test_a_server_that_refuses_or_is_away_is_503_as_without_durability() -> None:
    with EmbeddedServer(aof=True) as server:
        async with on(server, durability="aof", max_accepted=2) as here, here.connect() as client:
            await skip_without_waitaof(here.redis)
            async with asyncio.timeout(30):
                while not await here.redis.zcard(KEYS.responses):
                    await asyncio.sleep(0.01)
            assert await statuses(client, 2) == [202, 503]
            await here.redis.set(KEYS.responses, "no zset")
            assert await statuses(client, 1) == [503]
            await here.redis.delete(KEYS.responses)
            assert await statuses(client, 1) == [202]
            server.kill()
            assert await statuses(client, 2) == [503, 503]
