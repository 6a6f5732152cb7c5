"""More subscribers than connections that may be open."""

from contextlib import AsyncExitStack
from pathlib import Path

from tests.outbox.outboxes import Got, outbox, subscribed
from tests.support.harness import eventually


async def test_idle_connections_make_room_and_each_subscriber_gets_each_message(tmp_path: Path) -> None:
    count, most = 12, 8
    async with AsyncExitStack() as opened:
        publisher = await opened.enter_async_context(outbox(tmp_path / "publisher"))
        got = Got()
        for number in range(count):
            subscriber = await opened.enter_async_context(outbox(tmp_path / str(number)))
            subscriber.every("x", got)
            await subscribed(subscriber, publisher, "x")

        def connected() -> int:
            return sum(each.is_connected for each in publisher._deliveries.all)

        await publisher.publish("x", "one")
        await got.wait_for(*["one"] * count)
        await eventually(lambda: all(each.is_idle for each in publisher._deliveries.all))
        assert connected() == count
        publisher._deliveries.most_connected = most
        another = await opened.enter_async_context(outbox(tmp_path / "another"))
        await publisher.send("y", "makes room", another.advertise)
        await eventually(lambda: connected() == count - most // 2 + 1)
        assert not (await publisher.status()).away
        await publisher.publish("x", "two")
        await got.wait_for(*["one", "two"] * count)
