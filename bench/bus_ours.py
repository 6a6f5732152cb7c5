"""Queues and services through ``penstock.bus``: ``python -m bench.bus_ours URL`` takes orders, and answers each.

Orders are lines of JSON on stdin, a name and values: see the functions of ``ORDERS``. Answers are lines of JSON.
It runs on uvloop where that is installed, unless ``PENSTOCK_LOOP`` is ``asyncio``, as services do.
"""

import asyncio
import json
import statistics
import sys
import time
from typing import Any, Final

from common.app import fastest_loop
from penstock.bus import Bus
from penstock.bus.queue import Queue


def say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def body(number: int) -> bytes:
    """Return the message of that number, 32 bytes."""
    return str(number).rjust(32, "x").encode()


async def many(bus: Bus, names: list[str], count: int) -> None:
    """Push ``count`` messages to each of several queues, in turns, and consume all; answer with the seconds."""
    queues = [bus.queue(name) for name in names]
    await asyncio.gather(*(queue.attach() for queue in queues))
    consumers = [asyncio.create_task(_consume(queue, count)) for queue in queues]
    while not all(queue.is_consuming for queue in queues):
        await asyncio.sleep(0.01)
    begin = time.perf_counter()
    for number in range(count):
        for queue in queues:
            queue.push(body(number))
        await asyncio.sleep(0)
    await asyncio.gather(*consumers)
    seconds = time.perf_counter() - begin
    await asyncio.gather(*(queue.close() for queue in queues))
    say(seconds=seconds)


async def consume(bus: Bus, name: str, count: int, reliable: bool) -> None:
    """Consume ``count`` messages; answer once it has begun, once it is done, and once the queue is closed."""
    queue = bus.queue(name)
    await queue.attach()
    queue.once("consuming", lambda _: say())
    await _consume(queue, count, reliable=reliable)
    say()
    await queue.close()
    say()


async def produce(bus: Bus, name: str, count: int) -> None:
    """Push ``count`` messages; answer once it is done."""
    queue = bus.queue(name)
    await queue.attach()
    await queue.push_many(body(number) for number in range(count))
    await queue.detach()
    say()


async def _consume(queue: Queue, count: int, *, reliable: bool = False) -> None:
    """Consume ``count`` messages and check each."""
    number, acked = 0, None
    async for message in queue.consume(reliable=reliable):
        if message.body != body(number):
            raise AssertionError(f"message {number}: {message.body!r}")
        if reliable:
            acked = message.ack()
        number += 1
        if number == count:
            break
    if acked:
        await acked


async def wait(bus: Bus, name: str, count: int) -> None:
    """Take ``count`` messages one by one, each the time (ns) of its push; answer with the median wait."""
    queue = bus.queue(name)
    await queue.attach()
    queue.once("consuming", lambda _: say())
    waits = list[int]()
    async for message in queue.consume():
        waits.append(time.perf_counter_ns() - int(message.body))
        if len(waits) == count:
            break
    await queue.close()
    say(p50=statistics.median(waits) / 1e9)


async def push_now_and_then(bus: Bus, name: str, count: int, seconds: float) -> None:
    """Push the time (ns) ``count`` times, ``seconds`` apart; answer once it is done."""
    queue = bus.queue(name)
    await queue.attach()
    for _ in range(count):
        await asyncio.sleep(seconds)
        await queue.push(str(time.perf_counter_ns()))
    await queue.detach()
    say()


async def serve(bus: Bus, name: str) -> None:
    """Answer each request with its data, from now on."""
    await bus.service(name).serve(lambda request: request.data)
    say()


async def request(bus: Bus, name: str, count: int, at_a_time: int) -> None:
    """Send ``count`` requests, and check the answers; answer with the seconds for all and the median for one."""
    service = bus.service(name)
    await service.connect()
    numbers, waits = iter(range(count)), list[float]()

    async def caller() -> None:
        for number in numbers:
            begin = time.perf_counter()
            answer = await service.request({"number": number}, timeout=10)
            waits.append(time.perf_counter() - begin)
            if answer != {"number": number}:
                raise AssertionError(f"request {number}: {answer}")

    begin = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_a_time)))
    seconds = time.perf_counter() - begin
    await service.disconnect()
    say(seconds=seconds, p50=statistics.median(waits))


async def attach(bus: Bus, count: int) -> None:
    """Attach to ``count`` queues, and stay so."""
    for first in range(0, count, 1000):
        await asyncio.gather(
            *(bus.queue(f"idle:{first + place}").attach() for place in range(min(1000, count - first)))
        )
    say()


ORDERS: Final = {
    each.__name__: each for each in (many, consume, produce, wait, push_now_and_then, serve, request, attach)
}


async def obey(bus: Bus) -> None:
    """Take orders until stdin ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        order, *values = json.loads(line)
        await ORDERS[order](bus, *values)


async def main(url: str) -> None:
    """Take orders for the bus of ``url``."""
    async with Bus(url) as bus:
        await obey(bus)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(main(sys.argv[1]))
