"""A channel: what one end sends, the other gets, whenever each of them comes and goes."""

import asyncio
import itertools

import pytest
from redis.asyncio import Redis

from penstock.base.errors import Gone, WrongType
from penstock.bus import Bus
from tests.bus.given import attached, heard
from tests.support.harness import eventually


async def test_a_message_that_nobody_takes_waits_and_goes_back(bus: Bus, redis: "Redis") -> None:
    here, there = bus.channel("zoo"), bus.channel("zoo")
    await here.connect()
    await there.listen()
    await here.send("hi")
    await here.send("ho")
    while await redis.lrange("bus:queue:channel:remote:zoo:messages", 0, -1):  # both are taken
        pass
    await there.disconnect()
    assert (await redis.lrange("bus:queue:channel:remote:zoo:messages", 0, 3))[1::2] == [b":2:hi", b":2:ho"]
    await there.listen()
    async for message in there.messages():
        if message.body == b"ho":
            break


async def test_a_loop_that_is_cancelled_as_a_message_comes_loses_none(bus: Bus) -> None:
    here, there = bus.channel("zoo"), bus.channel("zoo")
    await here.connect()
    await there.listen()
    many, got = 300, list[int]()

    async def eat() -> None:
        async for message in there.messages():
            got.append(int(bytes(message)))

    async def feed() -> None:
        for number in range(many):
            await here.send(str(number))

    feeding = asyncio.ensure_future(feed())
    turns = itertools.cycle(range(1, 14))

    async def all_have_come() -> bool:
        eating = asyncio.ensure_future(eat())
        for _ in range(next(turns)):
            await asyncio.sleep(0)
        eating.cancel()
        await asyncio.gather(eating, return_exceptions=True)
        return len(got) >= many

    await eventually(all_have_come)
    await feeding
    assert got == [*range(many)]


async def test_a_message_on_the_way_to_a_loop_goes_back_if_the_channel_is_left(
    bus: Bus, redis: "Redis", monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = bus.channel("zoo"), bus.channel("zoo")
    await here.connect()
    await there.listen()
    loop = there.messages()
    waits = asyncio.ensure_future(anext(loop))
    await eventually(lambda: there._handover._iterated)
    offered = asyncio.Event()

    def cancel() -> None:
        waits.cancel()
        offered.set()

    monkeypatch.setattr(there._handover._offered, "set", cancel)
    await here.send("precious")
    await offered.wait()
    await there.disconnect()
    assert waits.cancelled()
    assert await redis.lindex("bus:queue:channel:remote:zoo:messages", 1) == b":2:precious"  # `here` may say more


@pytest.mark.parametrize("role", ["local", "remote"])
async def test_a_channel_that_somebody_closes_says_so_and_connects_again(bus: Bus, role: str) -> None:
    here = bus.channel("zoo")
    await here.connect()
    events = heard(here)
    await (await attached(bus, name=f"channel:{role}:zoo")).close()
    await eventually(lambda: len(events) == 2)
    assert [each[0] for each in events] == ["error", "disconnect"]
    assert isinstance(events[0][1], Gone)
    assert not here.is_attached
    await here.connect()
    there = bus.channel("zoo")
    await there.listen()
    await there.send("hi")
    await eventually(lambda: [str(each[1]) for each in events if each[0] == "message"] == ["hi"])
    assert bus._alive.queues
    await here.disconnect()
    await there.disconnect()
    assert not bus._alive.queues


async def test_a_channel_whose_way_back_is_refused_detaches(bus: Bus, redis: "Redis") -> None:
    here = bus.channel("zoo")
    await here.connect()
    events = heard(here)
    await redis.set("bus:queue:channel:remote:zoo:msgid", "no number")
    incoming = await attached(bus, name="channel:local:zoo")
    await incoming.push(":3:")  # which is answered
    await eventually(lambda: len(events) == 2)
    assert [each[0] for each in events] == ["error", "disconnect"]
    assert isinstance(events[0][1], WrongType)
    assert not here.is_attached
    await incoming.detach()
    assert not bus._alive.queues


async def test_a_channel_is_left_though_its_last_word_is_refused(bus: Bus, redis: "Redis") -> None:
    here = bus.channel("zoo")
    await here.connect()
    await redis.set("bus:queue:channel:remote:zoo:msgid", "no number")
    with pytest.raises(WrongType):
        await here.disconnect()
    assert not here.is_attached
    assert not bus._alive.queues
