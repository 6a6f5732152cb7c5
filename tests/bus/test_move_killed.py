"""Moves that are killed at any step: the next one goes on, and nothing is lost, doubled or left behind."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Unavailable
from penstock.bus import Bus
from penstock.bus.move import Mover, Step
from penstock.core.instance import Instance
from penstock.core.script import Script
from tests.bus.moving import Killable, Killed, filled, interrupted, left_behind, move, state, under_load
from tests.support.harness import PATIENCE


@pytest.fixture
async def bus(two: list[str], servers: list["Redis"]) -> AsyncIterator[Bus]:
    async with Bus(*two, patience=30) as connected:
        yield connected


@pytest.mark.parametrize("after", [False, True])
async def test_killed_at_any_step_the_next_move_goes_on(
    bus: Bus, servers: list["Redis"], monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    steps = 0
    while True:
        for redis in servers:
            await redis.flushall()
        queue = await filled(bus, "orders", 1_100, ttl=50)
        messages = queue.consume(reliable=True, exclusive=True, limit=2, prefetch=2)
        while queue.consumed < 2:
            await messages.fetch()
            while messages.next_taken():
                pass
        await queue.detach()
        before = await state(servers[0], "orders")
        with monkeypatch.context() as patch:
            was_killed = interrupted(patch, steps, after=after)
            try:
                await Mover(bus).move(Step("orders", bus.instances[0], bus.instances[1]))
            except Killed:
                assert was_killed()
        homes = [await redis.hmget("bus:queue:orders:metadata", "ttl", "moving") for redis in servers]
        assert sum(ttl is not None and moving is None for ttl, moving in homes) <= 1  # at most one that takes calls
        assert any(ttl is not None for ttl, _ in homes)
        await move(bus)
        assert {**await state(servers[1], "orders"), "lease": None} == {**before, "lease": None}, steps
        assert await left_behind(servers) == []
        assert await servers[0].keys("bus:queue:*") == []
        if not was_killed():
            break
        steps += 1
    assert steps >= 9


@pytest.mark.parametrize("at", [1, 3, 4])
async def test_a_queue_that_is_closed_during_a_killed_move_leaves_nothing_behind(
    bus: Bus, servers: list["Redis"], at: int
) -> None:
    await filled(bus, "orders", 700)
    with pytest.raises(Killed):
        await Killable(bus, at).move(Step("orders", bus.instances[0], bus.instances[1]))
    assert await left_behind(servers)
    for kind in ("metadata", "msgid"):  # as busmq closes it, or after its ttl
        await servers[0].delete(f"bus:queue:orders:{kind}")
    await move(bus)
    assert await left_behind(servers) == []
    assert not await servers[1].hget("bus:moving:orders:arrival", "token")


async def test_every_step_may_run_twice(bus: Bus, servers: list["Redis"], monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(bus, "orders", 1_100, ttl=50)
    before = await state(servers[0], "orders")
    run = Instance.run

    async def twice(self: Instance, script: Script, **named: Any) -> Any:
        await run(self, script, **named)  # its reply is lost
        return await run(self, script, **named)

    monkeypatch.setattr(Instance, "run", twice)
    await Mover(bus).move(Step("orders", bus.instances[0], bus.instances[1]))
    assert await state(servers[1], "orders") == before
    assert await left_behind(servers) == []


async def test_what_a_client_of_busmq_pushes_during_the_move_does_not_come_before_the_others(
    bus: Bus, servers: list["Redis"]
) -> None:
    queue = await filled(bus, "orders", 1)
    taken = list[str]()
    queue.on("message", lambda message: taken.append(str(message)))
    with pytest.raises(Killed):
        await Killable(bus, 1).move(Step("orders", bus.instances[0], bus.instances[1]))
    await servers[0].rpush("bus:queue:orders:messages", "2", "during")
    await queue.consume()
    await asyncio.sleep(0.2)  # timing: nothing may happen
    assert taken == []
    await move(bus)
    async with asyncio.timeout(30):
        while len(taken) < 2:
            await asyncio.sleep(0.01)
    assert taken == ["1", "during"]


@pytest.mark.parametrize("at", range(1, 7))
async def test_clients_wait_for_a_killed_move_and_go_on_with_the_next(
    bus: Bus, two: list[str], servers: list["Redis"], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    async with under_load(two, ["orders"], 300) as got:
        async with asyncio.timeout(30):
            while len(got["orders"]) < 20:
                await asyncio.sleep(0.005)
        homes = [await redis.exists("bus:queue:orders:metadata") for redis in servers]
        home = homes.index(1)
        killed = Killable(bus, at)
        with pytest.raises(Killed):
            await killed.move(Step("orders", bus.instances[home], bus.instances[1 - home]))
        await asyncio.sleep(0.1)  # timing: the clients notice that it has begun
        await move(bus, 1 - home)
    assert got["orders"] == [f"orders {number}" for number in range(300)]
    assert await left_behind(servers) == []


async def test_a_bus_that_waits_without_end_is_disconnected_though_a_move_was_killed(
    two: list[str], servers: list["Redis"]
) -> None:
    async with Bus(*two, patience=None) as bus:
        queue = await filled(bus, "orders", 1)
        await servers[0].hset("bus:queue:orders:metadata", "moving", "carried x 127.0.0.1:1")
        pushing = queue.push("x")
        await asyncio.sleep(0.1)  # timing: the push waits
        async with asyncio.timeout(PATIENCE):
            await bus.disconnect()
    with pytest.raises(Unavailable, match="run `penstock bus move` again"):
        await pushing


@pytest.mark.parametrize("at", range(8))
async def test_messages_that_are_gathered_arrive_once_though_it_is_killed(
    bus: Bus, servers: list["Redis"], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    await filled(bus, "orders", 1, server=1)
    for number in range(1_200):
        await servers[0].rpush("bus:queue:orders:messages", number, f"stray {number}")
    with monkeypatch.context() as patch:
        was_killed = interrupted(patch, at // 2, after=bool(at % 2))
        with pytest.raises(Killed):
            await Mover(bus).gather(Step("orders", bus.instances[0], bus.instances[1], stray=True))
        assert was_killed()
    await move(bus)
    bodies = (await state(servers[1], "orders"))["messages"][1::2]
    assert bodies == [b"1", *(b"stray %d" % number for number in range(1_200))]
    assert await left_behind(servers) == []
