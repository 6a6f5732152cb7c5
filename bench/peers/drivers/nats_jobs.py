"""Fan-out, jobs, and requests with answers through NATS, with its streams (JetStream) in memory."""

import asyncio
import itertools
import sys
import time
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType

from bench.peers.drivers.orders import BATCH, batches, mark, messages, orders, print_median, server


async def publish_to_all(client: Any) -> None:
    """Publish; a message counts once the server reports it pending for both of two durable consumers."""
    stream = await _stream(client)
    consumers = ("out0", "out1")
    for name in consumers:
        await stream.add_consumer("bench", ConsumerConfig(durable_name=name, ack_policy=AckPolicy.EXPLICIT))
    source, published = messages(), 0
    for count in orders():
        await _publish(stream, batches(count, source))
        published += count
        for name in consumers:
            while (await stream.consumer_info("bench", name)).num_pending < published:
                await asyncio.sleep(0.002)
        mark(count)


async def publish(client: Any) -> None:
    stream, source = await _stream(client), messages()
    for count in orders():
        await _publish(stream, batches(count, source))


async def _stream(client: Any) -> Any:
    stream = client.jetstream(publish_async_max_pending=2 * BATCH)
    await stream.add_stream(name="bench", subjects=["bench"], storage=StorageType.MEMORY)
    return stream


async def _publish(stream: Any, pieces: Any) -> None:
    """Publish all batches, one in flight at a time; the server confirms every message."""
    for batch in pieces:
        sent = [await stream.publish_async("bench", message.encode()) for message in batch]
        await asyncio.gather(*sent)


async def work(client: Any) -> None:
    stream = await _stream(client)
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=10 * BATCH)
    consumer = await stream.pull_subscribe("bench", durable="worker", config=config)
    while True:
        try:
            taken = await consumer.fetch(BATCH, timeout=5)
        except nats.errors.TimeoutError:
            continue
        for message in taken:
            await message.ack()
            mark()


async def answer(client: Any) -> None:
    async def echo(message: Any) -> None:
        await message.respond(message.data)

    await client.subscribe("requests", cb=echo)
    await asyncio.Event().wait()


async def request(client: Any) -> None:
    """Send requests by core NATS, which stores nothing: a request without a responder fails, so wait for one first."""
    source, heard = messages(), False
    while not heard:
        try:
            heard = bool(await client.request("requests", b"anybody?", timeout=10))
        except nats.errors.NoRespondersError:
            await asyncio.sleep(0.01)
    for count in orders():
        waits = []
        for message in itertools.islice(source, count):
            begin = time.perf_counter()
            answer = await client.request("requests", message.encode(), timeout=10)
            waits.append(time.perf_counter() - begin)
            if answer.data != message.encode():
                raise SystemExit(f"asked {message}, was answered {answer.data!r}")
        print_median(waits)


async def main(role: str) -> None:
    roles = {"fan-out": publish_to_all, "produce": publish, "work": work, "answer": answer, "ask": request}
    await roles[role](await nats.connect(server()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
