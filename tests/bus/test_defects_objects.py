"""Defects of busmq that must not occur here, of channels, objects and services: BQ-D15 to BQ-D20, D30 and D31."""

import asyncio
from dataclasses import dataclass, field

import pytest
from redis.asyncio import Redis

from penstock.base.errors import WrongCall
from penstock.bus import Bus, Message
from tests.bus.given import attached, heard, settled
from tests.support.harness import eventually


@dataclass
class Thing:
    foo: str = "one"
    bar: dict[str, int] = field(default_factory=dict)


async def test_BQ_D15_listening_again_uses_the_same_queues(bus: Bus, redis: "Redis") -> None:
    channel = bus.channel("zoo")
    for _ in range(3):
        await channel.listen()
        await bus.channel("zoo").send_to("remote", "x")
        assert (await anext(aiter(channel.messages()))).body == b"x"
        await channel.disconnect()
        assert not await redis.exists("bus:queue:channel:local:zoo:toack")
    assert len(await redis.lrange("bus:queue:channel:local:zoo:messages", 0, -1)) == 2 * 6  # :1: and :3: of each time
    assert await bus.queue("channel:remote:zoo").count() == 0


@pytest.mark.parametrize("body", [b":9:x", b"", b":", b":2", b"hello", b'{"a":1}', b"\xff\x00"])
async def test_BQ_D16_a_message_of_an_unknown_kind_is_an_error_and_the_channel_goes_on(bus: Bus, body: bytes) -> None:
    channel = bus.channel("zoo")
    events = heard(channel, "connect", "remote:connect")
    await channel.connect()
    stranger = await attached(bus, body, b":2:hello", name="channel:local:zoo")
    await eventually(lambda: len(events) == 2)
    assert [each[0] for each in events] == ["error", "message"]
    assert isinstance(events[0][1], WrongCall)
    assert await stranger.count() == 0


async def test_BQ_D18_a_change_during_a_save_is_not_lost(bus: Bus, redis: "Redis") -> None:
    thing = Thing()
    kept = bus.persistable("obj", thing)
    saving = asyncio.ensure_future(kept.save())
    await asyncio.sleep(0)  # the save is under way
    thing.foo = "two"
    assert await saving
    assert await redis.hget("bus:persisted:obj", "foo") != b'"two"'
    assert kept.dirty == {"foo"}
    assert await kept.save()
    assert await redis.hget("bus:persisted:obj", "foo") == b'"two"'


async def test_BQ_D19_load_replaces_what_was_changed_and_not_saved(bus: Bus) -> None:
    thing = Thing("saved", {"a": 1})
    kept = bus.persistable("obj", thing)
    await kept.save()
    thing.foo, thing.bar["a"] = "changed", 2
    assert kept.dirty == {"foo", "bar"}
    assert await kept.load()
    assert (thing, kept.dirty) == (Thing("saved", {"a": 1}), set())


async def test_BQ_D20_the_other_end_is_met_again_after_an_own_disconnect(bus: Bus) -> None:
    here, there = bus.channel("zoo"), bus.channel("zoo")
    events = heard(here)
    await there.listen()
    for _ in range(3):
        await here.connect()
        await eventually(lambda: here.is_remote_connected)
        await here.disconnect()
    assert [each[0] for each in events] == ["connect", "remote:connect", "disconnect"] * 3


async def test_BQ_D30_an_ack_of_a_control_message_never_takes_a_message_along(bus: Bus, redis: "Redis") -> None:
    here, there = bus.channel("zoo"), bus.channel("zoo")
    events, got = heard(there, "message"), list[Message]()
    there.on("message", got.append)
    await there.listen(reliable=True)
    await here.connect()
    await here.send("precious")
    await here.disconnect()
    await eventually(lambda: ("remote:disconnect",) in events)
    await settled(redis)
    toack = await redis.lrange("bus:queue:channel:remote:zoo:toack", 0, -1)
    assert toack[1::2] == [b":2:precious", b":3:"]
    await there.disconnect()
    await there.listen(reliable=True)
    await eventually(lambda: len(got) == 2)
    assert [each.body for each in got] == [b"precious"] * 2
    await there.ack(got[1].id)
    await eventually(lambda: _empty(redis))


async def test_BQ_D31_requests_are_served_once_and_leave_nothing(bus: Bus, redis: "Redis") -> None:
    served = list[object]()

    def handle(request: object) -> None:
        served.append(request)

    for number in range(3):
        provider, requester = bus.service("echo"), bus.service("echo")
        await provider.serve(handle)
        await requester.connect()
        await requester.request(number, timeout=60)
        await provider.disconnect()
        await requester.disconnect()
    assert len(served) == 3
    assert not await redis.exists("bus:queue:service:echo:toack")
    with pytest.raises(TypeError):
        await bus.service("echo").serve(handle, reliable=True)  # type: ignore[call-arg]


async def _empty(redis: "Redis") -> bool:
    return not await redis.exists("bus:queue:channel:remote:zoo:toack")
