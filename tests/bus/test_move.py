"""Queues that are moved to another server while clients use them: nothing lost, doubled or out of order."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Occupied, PenstockError
from penstock.bus import Bus, Placement
from penstock.bus.move import Mover, Step
from penstock.bus.placement import INDEX
from tests.bus.moving import Killable, Killed, filled, left_behind, move, state
from tests.support.commandline import penstock


@pytest.fixture
async def bus(two: list[str], servers: list["Redis"]) -> AsyncIterator[Bus]:
    async with Bus(*two, patience=30) as connected:
        yield connected


async def test_ids_order_ttl_metadata_lease_and_what_is_not_acknowledged_are_kept(
    bus: Bus, servers: list["Redis"], two: list[str]
) -> None:
    queue = await filled(bus, "orders", 1_234, ttl=77, maxsize=9_999)
    await queue.set_metadata({"owner": "Ada"})
    messages = queue.consume(reliable=True, exclusive=True, prefetch=5)
    for _ in range(4):
        await messages.fetch()
        while messages.next_taken():
            pass
    before = await state(servers[0], "orders")
    assert len(before["toack"]) > 2
    mover = Mover(bus, target=bus.instances[1])
    await mover.move(Step("orders", bus.instances[0], bus.instances[1]))
    assert await state(servers[1], "orders") == before
    assert mover.moved.messages == 1_234
    assert 70 < await servers[1].ttl("bus:queue:orders:messages") <= 77
    assert 0 < await servers[1].ttl("bus:queue:orders:consumer") <= 10
    assert await servers[0].keys("bus:*") == []
    assert await left_behind(servers) == []
    await queue.stop()


async def test_clients_go_on_at_the_other_server_without_hearing_that_it_closed(
    bus: Bus, servers: list["Redis"]
) -> None:
    queue, closed = await filled(bus, "orders", 3, ttl=60), list[str]()
    queue.on("closed", lambda: closed.append("closed"))
    reader = await filled(bus, "news", 3, ttl=60)
    taken, read = list[int](), list[int]()

    async def take() -> None:
        async for message in queue.consume(reliable=True, exclusive=True):
            taken.append(message.id)
            await message.ack()

    async def look() -> None:
        async for message in reader.consume(remove=False):
            read.append(message.id)

    tasks = [asyncio.create_task(take()), asyncio.create_task(look())]
    async with asyncio.timeout(30):
        while taken != [1, 2, 3] or read != [1, 2, 3]:
            await asyncio.sleep(0.01)
        await move(bus)
        while queue.instance is not bus.instances[1] or reader.instance is not bus.instances[1]:
            await asyncio.sleep(0.01)  # by the notice, long before the next sign of life
        assert await queue.push("x") == await reader.push("x") == 4
        while taken[-1] != 4 or read != [1, 2, 3, 4]:
            await asyncio.sleep(0.01)
    assert (await state(servers[1], "orders"))["toack"] == []
    assert await servers[0].keys("bus:queue:*") == []
    assert closed == []
    await queue.stop()
    await reader.stop()
    await asyncio.gather(*tasks)


async def test_a_move_that_fails_or_is_stopped_leaves_the_queue_where_it_was(
    bus: Bus, servers: list["Redis"], monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(bus, "orders", 2_000)
    before = await state(servers[0], "orders")
    mover = Mover(bus)
    monkeypatch.setattr("penstock.bus.move.transfer.MESSAGES", 100)
    moving = asyncio.create_task(mover.move(Step("orders", bus.instances[0], bus.instances[1])))
    async with asyncio.timeout(30):
        while not await servers[1].exists("bus:moving:orders:messages"):
            await asyncio.sleep(0)
    await servers[0].rpush("bus:queue:orders:messages", "2001", "of busmq")
    await servers[0].incr("bus:queue:orders:msgid")
    mover.stopping = True
    with pytest.raises(PenstockError, match="given up"):
        await moving
    after = await state(servers[0], "orders")
    assert after["metadata"] == before["metadata"]
    assert after["messages"] == [*before["messages"], b"2001", b"of busmq"]
    assert await left_behind(servers) == []
    assert not await servers[1].keys("bus:queue:*")


async def test_a_full_target_refuses_and_the_queue_stays(bus: Bus, servers: list["Redis"], two: list[str]) -> None:
    await filled(bus, "orders", 2_000)
    before = await state(servers[0], "orders")
    async with Bus(*two, patience=0.5) as hasty:
        await servers[1].config_set("maxmemory", 1)
        try:
            with pytest.raises(PenstockError, match="patience"):
                await move(hasty)
        finally:
            await servers[1].config_set("maxmemory", 0)
    assert await state(servers[0], "orders") == before


async def test_a_queue_that_both_servers_have_is_left_alone(bus: Bus, servers: list["Redis"]) -> None:
    await filled(bus, "orders", 2)
    await servers[1].hset("bus:queue:orders:metadata", "ttl", "30")
    mover = await move(bus)
    assert (mover.moved.queues, len(mover.problems)) == (0, 1)
    assert "orders is on" in mover.problems[0]
    with pytest.raises(Occupied):
        await Mover(bus).move(Step("orders", bus.instances[0], bus.instances[1]))
    assert await servers[0].llen("bus:queue:orders:messages") == 4
    assert await servers[0].hget("bus:queue:orders:metadata", "moving") is None


async def test_what_a_client_of_busmq_pushes_during_and_after_the_move_arrives_behind_the_others(
    bus: Bus, servers: list["Redis"]
) -> None:
    async def push(body: str) -> None:
        """As busmq: without a look at the metadata."""
        async with servers[0].pipeline() as pipeline:
            pipeline.incr("bus:queue:orders:msgid")
            number = (await pipeline.execute())[0]
            await servers[0].rpush("bus:queue:orders:messages", number, body)

    await filled(bus, "orders", 2)
    killed = Killable(bus, 4)
    with pytest.raises(Killed):
        await killed.move(Step("orders", bus.instances[0], bus.instances[1]))
    await push("during")
    assert (await move(bus)).moved.queues == 1
    assert (await state(servers[1], "orders"))["messages"] == [b"1", b"1", b"2", b"2", b"3", b"during"]
    for number in range(700):
        await push(f"after {number}")
    assert (await move(bus)).moved.gathered == 700
    after = [b"after %d" % number for number in range(700)]
    found = (await state(servers[1], "orders"))["messages"]
    assert found[6::2] == [b"%d" % number for number in range(4, 704)]
    assert found[7::2] == after
    assert await left_behind(servers) == []


async def test_large_queues_and_messages_hold_no_server_for_long(bus: Bus, servers: list["Redis"]) -> None:
    await filled(bus, "long", 100_000, ttl=300)
    large = await filled(bus, "large", 0, ttl=300)
    bodies = [bytes([number]) * 3_000_000 for number in range(12)]
    for body in bodies:
        await large.push(body)
    before = await state(servers[0], "long")
    for target in (1, 0, 1, 0, 1):  # again if the machine stalls while a server runs a script
        for redis in servers:
            await redis.config_resetstat()
            await redis.slowlog_reset()
        assert (await move(bus, target)).moved.queues == 2
        is_short = [await _runs_no_script_for_long(redis) for redis in servers]  # the test reads all only after this
        if all(is_short):
            break
    assert all(is_short)
    assert await state(servers[target], "long") == before
    assert (await servers[target].lrange("bus:queue:large:messages", 0, -1))[1::2] == bodies


async def _runs_no_script_for_long(redis: "Redis") -> bool:
    """Return whether no script has taken a quarter of the time of all."""
    all_of_them = (await redis.info("commandstats"))["cmdstat_evalsha"]["usec"]
    return all(each["duration"] < all_of_them / 4 for each in await redis.slowlog_get(100))


@pytest.mark.slow
@pytest.mark.parametrize("placement", [*Placement])
async def test_the_command_brings_queues_to_where_the_placement_puts_them(
    two: list[str], servers: list["Redis"], placement: Placement
) -> None:
    names = [f"orders:{number}" for number in range(40)]
    async with Bus(two[0]) as alone:
        for name in names:
            queue = alone.queue(name)
            await queue.attach(ttl=60)
            await queue.push(name)
    words = ("bus", "move", *two, "--placement", str(placement))
    planned = (await penstock(*words, "--dry-run", "--json")).json["moves"]
    wrong = [name for name in names if INDEX[placement](f"bus:queue:{name}:metadata", two)]
    assert [each["queue"] for each in planned] == sorted(wrong)
    done = (await penstock(*words, "--json")).json
    assert (done["queues"], done["messages"], done["problems"]) == (len(wrong), len(wrong), [])
    there = [name for name in names if await servers[1].exists(f"bus:queue:{name}:metadata")]
    assert there == wrong
    again = await penstock(*words)
    assert (again.status, again.text) == (0, "every queue is where it belongs: nothing moved\n")
    back = await penstock("bus", "move", *two, "--to", two[0], "--match", there[0], "--json")
    assert back.json["queues"] == 1
    async with Bus(*two, placement=placement) as bus:
        found = Counter[str]()
        for name in names:
            queue = bus.queue(name)
            assert await queue.attach()
            async for message in queue.consume():
                found[str(message)] += 1
                break
        assert found == Counter(names)


@pytest.mark.slow
async def test_calls_of_the_command_that_make_no_sense_are_refused(two: list[str]) -> None:
    for words, expected in (
        ([two[0]], "at least two servers"),
        ([*two, "--to", "redis://localhost:1/0"], "is not one of the servers"),
        ([*two, "--placement", "random"], "expected busmq or rendezvous"),
        ([*two, "--durability", "disk"], "expected memory, aof"),
    ):
        result = await penstock("bus", "move", *words)
        assert (result.status, expected in result.error) == (2, True)
