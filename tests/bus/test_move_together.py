"""Two runs of a move at once: nothing lost, doubled or out of order."""

import asyncio
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Fenced, Gone, Occupied
from penstock.bus import Bus
from penstock.bus.move import Mover, Step
from penstock.bus.move.lease import MOVER
from penstock.bus.scripts import ADOPT, RECEIVE, TAKE_OVER
from penstock.core.instance import Instance
from penstock.core.script import Script
from tests.bus.moving import Killable, Killed, filled, left_behind, move, state, under_load
from tests.support.commandline import penstock
from tests.support.harness import PATIENCE, eventually


@pytest.fixture
async def bus(two: list[str], servers: list["Redis"]) -> AsyncIterator[Bus]:
    async with Bus(*two, patience=30) as connected:
        yield connected


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lease of a killed run end soon."""
    monkeypatch.setattr("penstock.bus.move.lease.SECONDS", 1)
    monkeypatch.setattr("penstock.bus.move.lease.WAIT_SECONDS", 1.2)


class Held:
    """Stops the first call of a script until ``go`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
        self.reached, self.go = asyncio.Event(), asyncio.Event()
        run = Instance.run

        async def held(instance: Instance, called: Script, **named: Any) -> Any:
            if called is script and not self.reached.is_set():
                self.reached.set()
                await self.go.wait()
            return await run(instance, called, **named)

        monkeypatch.setattr(Instance, "run", held)


async def push_strays(redis: "Redis", first: int, many: int) -> None:
    """Push as a client of busmq that has not noticed a move."""
    for number in range(first, first + many):
        await redis.rpush("bus:queue:orders:messages", number, f"stray {number}")


async def test_two_that_gather_at_once_bring_each_message_once(
    bus: Bus, servers: list["Redis"], monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(bus, "orders", 1, server=1)
    await push_strays(servers[0], 0, 1_200)
    held = Held(monkeypatch, ADOPT)
    step = Step("orders", bus.instances[0], bus.instances[1], stray=True)
    slow, quick = Mover(bus), Mover(bus)
    gathering = asyncio.create_task(slow.gather(step))
    await held.reached.wait()
    await quick.gather(step)
    await push_strays(servers[0], 1_200, 5)
    held.go.set()
    await gathering
    bodies = (await state(servers[1], "orders"))["messages"][1::2]
    assert bodies == [b"1", *(b"stray %d" % number for number in range(1_205))]
    assert (quick.moved.gathered, slow.moved.gathered) == (1_200, 5)
    assert await left_behind(servers) == []


@pytest.mark.parametrize("at", range(1, 4))
async def test_messages_that_were_being_gathered_arrive_once_where_the_queue_has_moved_back_to(
    bus: Bus, servers: list["Redis"], at: int
) -> None:
    await filled(bus, "orders", 1, server=1)
    await push_strays(servers[0], 0, 700)
    killed = Killable(bus, at)
    source, target = map(killed.dying, bus.instances)
    with pytest.raises(Killed):
        await killed.gather(Step("orders", source, target, stray=True))  # type: ignore[arg-type]  # all that it needs
    assert (await move(bus, 0)).moved.queues == 1
    await move(bus, 0)
    bodies = (await state(servers[0], "orders"))["messages"][1::2]
    assert sorted(bodies) == sorted([b"1", *(b"stray %d" % number for number in range(700))])
    assert await left_behind(servers) == []


async def test_a_batch_that_was_adopted_is_known_where_the_queue_goes_next(
    bus: Bus, two: list[str], servers: list["Redis"]
) -> None:
    third = two[1].removesuffix("/0") + "/1"
    await filled(bus, "orders", 1, server=1, ttl=60)
    await push_strays(servers[0], 0, 3)
    killed = Killable(bus, 2)  # after it has arrived
    source, target = map(killed.dying, bus.instances)
    with pytest.raises(Killed):
        await killed.gather(Step("orders", source, target, stray=True))  # type: ignore[arg-type]  # all that it needs
    async with Bus(two[1], third) as away, Bus(*two, third) as all_three:
        assert (await move(away)).moved.queues == 1
        assert (await move(all_three, 2)).moved.gathered == 0
    async with Redis.from_url(third) as redis:
        bodies = (await state(redis, "orders"))["messages"][1::2]
    assert bodies == [b"1", b"stray 0", b"stray 1", b"stray 2"]
    assert await left_behind(servers) == []


async def test_messages_without_a_queue_are_kept_for_a_day_after_a_killed_move(
    bus: Bus, servers: list["Redis"]
) -> None:
    queue = await filled(bus, "orders", 1, server=1, ttl=60)
    await push_strays(servers[0], 0, 3)
    killed = Killable(bus, 1)
    source, target = map(killed.dying, bus.instances)
    with pytest.raises(Killed):
        await killed.gather(Step("orders", source, target, stray=True))  # type: ignore[arg-type]  # all that it needs
    await queue.close()
    await move(bus)
    left = await left_behind(servers)
    assert sorted(left) == [b"bus:moving:orders:batch", b"bus:moving:orders:strays"]
    assert [86_000 < await servers[0].ttl(key) <= 86_400 for key in left] == [True, True]
    await filled(bus, "orders", 1, server=1, ttl=60)
    assert (await move(bus)).moved.gathered == 3
    assert await left_behind(servers) == []


async def test_a_second_move_waits_for_the_first(
    bus: Bus, two: list[str], servers: list["Redis"], monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(bus, "orders", 3, ttl=60)
    held = Held(monkeypatch, TAKE_OVER)
    async with Bus(*two) as other:
        first = asyncio.create_task(move(bus, 1))
        await held.reached.wait()
        owner = await servers[0].get(MOVER)
        second = asyncio.create_task(move(other, 0))
        await asyncio.sleep(0.3)  # timing: nothing may happen
        assert (await servers[0].get(MOVER), second.done()) == (owner, False)
        held.go.set()
        assert (await first).moved.queues == 1
        await second
    assert await servers[0].exists(MOVER) + await servers[1].exists(MOVER) == 0


async def test_a_second_move_is_refused_if_the_first_goes_on_and_follows_if_it_was_killed(
    bus: Bus, servers: list["Redis"], quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(bus, "orders", 3, ttl=60)
    await servers[1].set(MOVER, "another run")
    with pytest.raises(Occupied, match="another move has"):
        await move(bus)
    assert await servers[0].exists(MOVER) == 0
    assert await servers[1].get(MOVER) == b"another run"
    await servers[1].pexpire(MOVER, 500)
    monkeypatch.setattr("penstock.bus.move.lease.WAIT_SECONDS", PATIENCE)
    assert (await move(bus)).moved.queues == 1


async def test_a_move_that_has_lost_its_lease_gives_up_and_says_so(
    bus: Bus, servers: list["Redis"], quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(bus, "orders", 1_000, ttl=60)
    monkeypatch.setattr("penstock.bus.move.transfer.MESSAGES", 100)
    before, mover = await state(servers[0], "orders"), Mover(bus, target=bus.instances[1])
    held, errors = Held(monkeypatch, RECEIVE), list[str]()
    running = asyncio.create_task(mover.run(await mover.plan(), lambda _, error: errors.append(str(error))))
    await held.reached.wait()
    await servers[0].set(MOVER, "another run")
    await eventually(lambda: mover.stopping)
    held.go.set()
    with pytest.raises(Fenced, match="another one has begun"):
        await running
    assert errors == ["given up"]
    assert await state(servers[0], "orders") == before
    assert await servers[0].get(MOVER) == b"another run"
    assert await left_behind(servers) == []


async def test_two_at_once_under_load_lose_double_and_reorder_nothing(
    bus: Bus, two: list[str], servers: list["Redis"]
) -> None:
    names, many, moves = [f"q{number}" for number in range(4)], 200, [0, 0]
    async with under_load(two, names, many) as got:

        async def keep_moving(target: int) -> None:
            async with Bus(*two, patience=30) as mine:
                while min(map(len, got.values())) < many * 0.9 or min(moves) < 2:
                    moves[target] += (await move(mine, target)).moved.queues
                    await asyncio.sleep(0.01)

        await asyncio.gather(keep_moving(0), keep_moving(1))
    for name in names:
        assert got[name] == [f"{name} {number}" for number in range(many)]
    assert await left_behind(servers) == []


@pytest.mark.slow
async def test_two_without_a_lease_under_load_lose_double_and_reorder_nothing(
    bus: Bus, two: list[str], servers: list["Redis"]
) -> None:
    """One was paused for longer than its lease, and goes on."""
    many, both = 100, list[Mover]()
    async with under_load(two, ["orders"], many) as got:

        async def keep_moving(mine: Bus) -> None:
            while len(got["orders"]) < many * 0.9:
                homes = [await redis.hget("bus:queue:orders:metadata", "ttl") for redis in servers]
                source = int(homes[0] is None)
                both.append(Mover(mine))
                with suppress(Fenced, Occupied, Gone):
                    await both[-1].move(Step("orders", mine.instances[source], mine.instances[1 - source]))
                await asyncio.sleep(0.01)

        async with Bus(*two, patience=30) as other:
            await asyncio.gather(keep_moving(bus), keep_moving(other))
        await move(bus)
    assert got["orders"] == [f"orders {number}" for number in range(many)]
    assert sum(each.moved.queues for each in both) >= 2
    assert await left_behind(servers) == []


@pytest.mark.slow
async def test_after_a_killed_command_the_next_one_waits_for_its_lease_and_goes_on(
    bus: Bus, two: list[str], servers: list["Redis"]
) -> None:
    names = [f"q{number}" for number in range(60)]
    for name in names:
        await filled(bus, name, 500, ttl=300)
    words = ("bus", "move", *two, "--to", two[1], "--json")
    killed = await asyncio.create_subprocess_exec(sys.executable, "-m", "penstock", *words, stdout=DEVNULL)
    await eventually(lambda: servers[1].exists("bus:queue:q0:metadata"), 30)
    killed.kill()
    await killed.wait()
    assert await servers[0].exists(MOVER)
    done = (await penstock(*words)).json
    assert (0 < done["queues"] <= len(names), done["problems"]) == (True, [])
    for name in names:
        assert (await state(servers[1], name))["messages"][1::2] == [b"%d" % number for number in range(1, 501)]
    assert await left_behind(servers) == []
    assert await servers[0].keys("bus:*") == await servers[1].keys(MOVER) == []
