"""The server is stopped under load: producers never err, and nothing is lost, doubled or out of order."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis

from penstock.bus import Bus
from penstock.lists import Lists
from penstock.outbox import Outbox
from penstock.testing.server import EmbeddedServer
from tests.support.harness import eventually

PRODUCERS = 4
PAUSE_SECONDS = 0.002
Push = Callable[[str], Awaitable[object]]


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.slow)])
async def test_producers_go_on_while_the_server_is_stopped_under_load(tmp_path: Path, seconds: int) -> None:
    pushed, ends = Counter[str](), asyncio.Event()

    async def produce(push: Push, who: str) -> None:
        while not ends.is_set():
            await push(f"{who} {pushed[who]}")
            pushed[who] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async with (
        EmbeddedServer(aof=True) as server,
        Outbox(datadir=tmp_path) as outbox,
        Lists(server.url, outbox=outbox) as lists,
        Bus(server.url, outbox=outbox) as bus,
    ):
        queue = bus.queue("orders")
        await queue.attach(ttl=3600)
        ways: dict[str, Push] = {"list": lists["orders"].push, "queue": queue.push}
        producers = asyncio.gather(*(produce(ways[kind], f"{kind} {who}") for kind in ways for who in range(PRODUCERS)))

        async def go_on() -> None:
            """Return once each producer has pushed some more, and raise what any has raised."""
            before = Counter(pushed)
            await eventually(lambda: producers.done() or all(pushed[who] > before[who] + 10 for who in before))
            assert not producers.done(), producers.exception()

        await eventually(lambda: len(pushed) == 2 * PRODUCERS)
        await go_on()
        await asyncio.to_thread(server.kill)
        await go_on()
        await asyncio.sleep(seconds)
        await go_on()
        assert lists.waiting
        assert bus.waiting
        await asyncio.to_thread(server.start)
        await eventually(lambda: not lists.waiting and not bus.waiting)
        await go_on()
        ends.set()
        await producers
        await eventually(lambda: not lists.waiting and not bus.waiting)
        async with Redis.from_url(server.url, decode_responses=True) as redis:
            listed = (await redis.lrange("orders", 0, -1))[::-1]
            queued = (await redis.lrange("bus:queue:orders:messages", 0, -1))[1::2]
        found = [str(each) for each in (*listed, *queued)]
    by_producer = {who: [int(each.split()[2]) for each in found if each.startswith(f"{who} ")] for who in pushed}
    print(f"{len(found):,} messages")
    assert by_producer == {who: [*range(many)] for who, many in pushed.items()}
