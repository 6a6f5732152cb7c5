"""penstock bus status, queue and tail."""

import json
import re
import signal
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.bus import Bus
from penstock.testing.server import EmbeddedServer
from tests.cli.given import cells
from tests.support.commandline import AWKWARD, ended, penstock, running
from tests.support.harness import eventually


@pytest.fixture
async def bus(redis: "Redis", redis_url: str) -> Any:
    async with Bus(redis_url) as connected:
        yield connected


async def filled(bus: Bus, name: str, many: int, **options: Any) -> Any:
    queue = bus.queue(name)
    await queue.attach(**options)
    await queue.push_many(f"message {number}" for number in range(many))
    return queue


async def test_each_queue_is_shown_with_all_that_is_known(bus: Bus, redis_url: str) -> None:
    await filled(bus, "orders", 4, maxsize=9, ttl=60)
    await filled(bus, "bills", 0)
    taker = await filled(bus, "orders", 0)
    messages = taker.consume(reliable=True, exclusive=True)
    assert await messages.fetch()
    result = await penstock("bus", "status", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    name, waiting, unacknowledged, ttl, last, consumers, more = cells(result, "orders")
    assert (name, waiting, unacknowledged, last, consumers) == ("orders", "3", "1", "4", "1")
    assert re.fullmatch(r"(60|[345]\d)/60", ttl)
    assert more == "maxsize 9"
    assert f"lease {bus.id[:8]}" in result.text
    assert [line.split("│")[1].strip() for line in result.text.splitlines() if "/" in line and "│" in line] == [
        "bills",
        "orders",
    ]


async def test_status_as_json_has_the_same_and_names_may_be_chosen(bus: Bus, redis_url: str) -> None:
    await filled(bus, "orders", 2)
    await filled(bus, "bills", 1)
    found = (await penstock("bus", "status", "--match", "o*", "--json", redis=redis_url)).json
    assert found["problems"] == []
    (server,) = found["servers"]
    assert server["total"] == 1
    assert {server["queues"][0][field] for field in ("name", "waiting", "last_id")} == {"orders", 2}


async def test_no_queues_are_no_error(redis: Redis, redis_url: str) -> None:
    result = await penstock("bus", "status", redis=redis_url)
    assert (result.status, result.text) == (0, f"{redis_url}: no queues\n")
    result = await penstock("bus", "status", "--match", "x*", redis=redis_url)
    assert result.text == f"{redis_url}: no queues match x*\n"


@pytest.mark.parametrize("name", AWKWARD)
async def test_any_name_is_found(bus: Bus, redis_url: str, name: str) -> None:
    await filled(bus, name, 1)
    assert (await penstock("bus", "queue", name, "--json", redis=redis_url)).json["found"][0]["waiting"] == 1
    status = await penstock("bus", "status", "--json", redis=redis_url)
    assert [each["name"] for each in status.json["servers"][0]["queues"]] == [name]


async def test_a_queue_without_metadata_or_on_two_servers_or_of_a_wrong_type_is_a_finding(
    bus: Bus, redis: Redis, redis_url: str
) -> None:
    await redis.rpush("bus:queue:headless:messages", "1", "a")
    await redis.set("bus:queue:wrong:metadata", "text")
    await filled(bus, "twice", 1)
    with EmbeddedServer() as other:
        async with Bus(other.url) as second:
            await filled(second, "twice", 1)
            result = await penstock("bus", "status", redis_url, other.url)
    assert result.status == 1
    assert "headless: no metadata: clients do not find it" in result.text
    assert "wrong: metadata is of another type" in result.text
    assert "twice is on 2 servers: clients find only the first" in result.text


@pytest.mark.slow
async def test_many_queues_are_shown_up_to_a_limit_which_says_what_is_left(redis: Redis, redis_url: str) -> None:
    async with redis.pipeline(transaction=False) as pipeline:
        for number in range(20_000):
            pipeline.hset(f"bus:queue:q{number:05}:metadata", "ttl", "30")
        await pipeline.execute()
    result = await penstock("bus", "status", redis=redis_url)
    assert "20,000 queues" in result.text
    assert "19,900 more queues: --limit shows more, --match chooses" in result.text
    assert cells(result, "q00099")[0] == "q00099"
    assert "q00100" not in result.text
    assert len((await penstock("bus", "status", "--json", redis=redis_url)).json["servers"][0]["queues"]) == 20_000


async def test_no_keys_are_listed_at_once_and_none_is_kept_alive(bus: Bus, redis: Redis, redis_url: str) -> None:
    await filled(bus, "orders", 1, ttl=60)
    await redis.expire("bus:queue:orders:metadata", 9)
    await redis.config_resetstat()
    await penstock("bus", "status", redis=redis_url)
    await penstock("bus", "queue", "orders", redis=redis_url)
    stats = await redis.info("commandstats")
    assert "cmdstat_keys" not in stats
    assert await redis.ttl("bus:queue:orders:metadata") <= 9


async def test_a_queue_is_shown_with_its_server_ids_and_metadata(bus: Bus, redis_url: str) -> None:
    queue = await filled(bus, "orders", 5)
    await queue.set_metadata({"owner": "Ada"})
    with EmbeddedServer() as other:
        result = await penstock("bus", "queue", "orders", other.url, redis_url)
    assert result.status == 0
    assert f"orders on {redis_url}" in result.text
    assert cells(result, "waiting")[1] == "5, ids 1 to 5"
    assert cells(result, "owner") == ["metadata: owner", "Ada"]


async def test_a_queue_that_does_not_exist_and_a_server_that_is_away_are_named(redis: Redis, redis_url: str) -> None:
    result = await penstock("bus", "queue", "nix", redis=redis_url)
    assert (result.status, result.error) == (
        1,
        "penstock: this server has no queue nix: `penstock bus status` lists those that exist\n",
    )
    result = await penstock("bus", "status", redis_url, "redis://127.0.0.1:1/0")
    assert result.status == 1
    assert "cannot reach redis://127.0.0.1:1/0" in result.error
    result = await penstock("bus", "status", redis_url, redis_url)
    assert (result.status, result.error) == (2, "penstock: a server is named twice: name each once\n")


async def test_watch_shows_them_again_until_it_is_stopped(bus: Bus, redis_url: str) -> None:
    queue = await filled(bus, "orders", 1)
    async with running("bus", "status", "--watch", "--json", redis=redis_url) as process:
        assert process.stdout
        for many in (1, 2):
            found = None
            while found != many:
                found = json.loads(await process.stdout.readline())["servers"][0]["queues"][0]["waiting"]
            await queue.push("another")
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


async def test_tail_shows_messages_from_a_place_on_and_leaves_them(bus: Bus, redis_url: str) -> None:
    queue = await filled(bus, "orders", 5)
    await queue.push(b"\x1b[31m\xff")
    async with running("bus", "tail", "orders", "--start", "4", "--limit", "2", redis=redis_url) as process:
        out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    assert out == b"5\tmessage 4\n6\t\\x1b[31m\\xff\n"
    assert await queue.count() == 6


async def test_tail_follows_from_now_on_until_ctrl_c(bus: Bus, redis: Redis, redis_url: str) -> None:
    queue = await filled(bus, "orders", 3)
    async with running("bus", "tail", "orders", "--json", redis=redis_url) as process:
        assert process.stdout

        async def listens() -> bool:
            return bool((await redis.pubsub_numsub("bus:queue:orders:available"))[0][1])

        await eventually(listens)
        await queue.push("new")
        assert json.loads(await process.stdout.readline()) == {"id": 4, "message": "new"}
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0


async def test_tail_ends_when_the_queue_is_gone_and_does_not_keep_it_alive(redis: Redis, redis_url: str) -> None:
    async with Bus(redis_url) as bus:
        await filled(bus, "orders", 1)
        async with running("bus", "tail", "orders", redis=redis_url) as process:

            async def listens() -> bool:
                return bool((await redis.pubsub_numsub("bus:queue:orders:available"))[0][1])

            await eventually(listens)
            await bus.disconnect()
            for key in await redis.keys("bus:queue:orders:*"):
                await redis.pexpire(key, 100)
            assert await ended(process) == (1, "penstock: queue orders is gone: it was closed or has expired\n")
    async with running("bus", "tail", "nix", redis=redis_url) as process:
        status, err = await ended(process)
    assert status == 1
    assert "this server has no queue nix" in err
