"""Messages that a peer of the gateway has not confirmed: how many there may be, and what becomes of them."""

from redis.asyncio import Redis

from penstock.bus import Bus
from penstock.bus.federation.frames import call_line
from services.gateway.listener import Listener
from tests.bus.gateway import ends, serving, works
from tests.bus.raw import raw
from tests.support.harness import eventually


async def test_BQ_D27_a_slow_peer_gets_no_more_than_the_window(gateway: Listener, bus: Bus) -> None:
    queue = bus.queue("foo")
    await queue.attach()
    await queue.push_many([b"x" * 1_000] * 5_000)
    async with raw(gateway) as peer:
        channel = await peer.create("queue", "foo", session="a" * 32)
        await channel.on("messages", 7)
        await channel.call("attach")
        await channel.call("consume")
        rows = [await channel.next()]
        await eventually(lambda: gateway.counters["delivered"] == 1_000)
        assert await channel.call("exists") == [None, True]
        assert await queue.count() >= 5_000 - 1_000 - 1_000  # the window, and what was taken ahead
        assert gateway.counters["delivered"] == 1_000
        await channel.send(call_line("handled", (10,)))
        await eventually(lambda: gateway.counters["delivered"] == 1_010)
        assert rows


@ends
async def test_copies_for_many_listeners_of_a_peer_that_does_not_read_are_bounded(gateway: Listener, bus: Bus) -> None:
    queue = bus.queue("foo")
    await queue.attach()
    await queue.push_many([b"x" * 1_000] * 1_000)
    async with raw(gateway) as peer:
        channel = await peer.create()
        for callback in range(100):
            await channel.on("message", callback)
        await channel.call("attach")
        peer.connection.transport.pause_reading()
        await channel.send(call_line("consume", ()))
        await eventually(lambda: gateway.counters["delivered"] > 0)
        for _ in range(1_000):  # turns of the loop that the gateway has, too
            await queue.exists()
        assert gateway.counters["delivered"] < 500  # of 100 kB each, with `callBytes` of 16 MiB
        peer.connection.transport.abort()
    await eventually(lambda: gateway.counters["disconnections"] == 1)


@ends
async def test_BQ_D24_what_a_dead_websocket_never_got_goes_back(gateway: Listener, bus: Bus) -> None:
    """In the default mode, and of a peer that confirms nothing itself."""
    queue = bus.queue("foo")
    await queue.attach()
    ids = await queue.push_many([b"%d" % number for number in range(2_000)])
    async with raw(gateway) as peer:
        channel = await peer.create()
        await channel.on("message", 7)
        await channel.call("attach")
        peer.connection.transport.pause_reading()
        await channel.send(call_line("consume", ()))
        await eventually(lambda: gateway.counters["delivered"] == 1_000)
        peer.connection.transport.abort()
    await eventually(lambda: gateway.counters["disconnections"] == 1)
    assert gateway.counters["given_back"] == 1_000
    taken = list[int]()
    async for message in queue.consume():
        taken.append(message.id)
        if len(taken) == 2_000:
            break
    assert taken == ids


@ends
async def test_BQ_D24_messages_of_a_channel_go_back_too(gateway: Listener, bus: Bus) -> None:
    other = bus.channel("zoo")
    await other.listen()
    sent = [b"%d" % number for number in range(1_500)]
    async with raw(gateway) as peer:
        channel = await peer.create("channel", "zoo")
        await channel.on("message", 7)
        await channel.call("connect")
        peer.connection.transport.pause_reading()
        for body in sent:
            await other.send(body)
        await eventually(lambda: gateway.counters["delivered"] == 1_000)
        peer.connection.transport.abort()
    await eventually(lambda: gateway.counters["disconnections"] == 1)
    end, taken = bus.channel("zoo"), list[bytes]()
    await end.connect()
    async for message in end.messages():
        taken.append(message.body)
        if len(taken) == len(sent):
            break
    assert taken == sent


async def test_a_dead_peer_is_noticed(redis: "Redis", redis_url: str) -> None:
    async with serving(redis_url, ping_interval=1, ping_timeout=2) as gateway, raw(gateway) as peer:
        await works(peer)
        peer.connection.transport.pause_reading()
        await eventually(lambda: gateway.counters["disconnections"] == 1)
