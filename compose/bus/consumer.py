"""Consume readings reliably: count them, keep statistics, send daily means on, answer queries.

It may be killed at any moment. What it does with a message is done once: the list of handled readings and the
statistics each know the last id; daily means are sent before that, and site two keeps one a day.
"""

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, Final

from compose.bus.names import CONTROL, DAILY, HANDLED, LAST, PAUSES, QUERIES, READINGS, STATISTICS, TTL
from compose.bus.statistics import Statistics
from penstock.bus import Bus, Consumption, Message
from penstock.connection import connect
from penstock.errors import Occupied

if TYPE_CHECKING:
    from redis.asyncio import Redis

HIGH: Final = 300
"""Messages that wait from which on the producer pauses."""
LOW: Final = 100
"""Messages that wait below which it resumes."""


class Consumer:
    """Handles readings, in batches."""

    def __init__(self, redis: "Redis", bus: Bus) -> None:
        self._redis, self._bus = redis, bus
        self._readings = bus.queue(READINGS)
        self._daily, self._control = bus.queue(DAILY), bus.channel(CONTROL, "consumer", "producer")
        self._statistics = Statistics()
        self._kept = bus.persistable(STATISTICS, self._statistics)
        self._handled, self._paused, self._stops = 0, False, False

    async def run(self) -> None:
        """Handle readings until ``stop``."""
        await self._kept.load()
        await self._kept.persist(TTL)
        self._handled = int(await self._redis.get(LAST) or 0)
        await asyncio.gather(
            self._readings.attach(ttl=TTL), self._daily.attach(ttl=TTL), self._control.connect(ttl=TTL)
        )
        await self._control.send("resume")  # a former consumer may have paused it
        queries = self._bus.service(QUERIES)
        await queries.serve(lambda request: self._statistics.answer(request.data["month"]))
        messages = self._consume()
        while not self._stops:
            try:
                if not await messages.fetch():
                    break
            except Occupied as error:  # a consumer that was killed had the queue
                print(f"waiting: {error}", flush=True)
                await self._readings.stop()
                await asyncio.sleep(1)
                messages = self._consume()
                continue
            batch = list[Message]()
            while message := messages.next_taken():
                batch.append(message)
            await self._handle(batch)
        await queries.disconnect(grace=1)

    async def stop(self) -> None:
        """End ``run``; what was not handled goes back."""
        self._stops = True
        await self._readings.stop()

    def _consume(self) -> Consumption:
        last = min(self._handled, self._statistics.last)
        return self._readings.consume(reliable=True, exclusive=True, after_id=last)

    async def _handle(self, batch: list[Message]) -> None:
        new = [each for each in batch if each.id > self._handled]
        if new:
            self._handled = new[-1].id
            async with self._redis.pipeline(transaction=True) as both:
                both.lpush(HANDLED, *(each.body for each in new))
                both.set(LAST, self._handled)
                await both.execute()
        days = [self._statistics.add(each.id, each.body) for each in batch]
        await self._daily.push_many([f"{day[0]},{day[1]}" for day in days if day])
        await self._kept.save()
        await self._readings.ack(batch[-1].id)
        await self._steer()

    async def _steer(self) -> None:
        waiting = await self._readings.count()
        if waiting > HIGH if not self._paused else waiting < LOW:
            self._paused = not self._paused
            await self._control.send("pause" if self._paused else "resume")
            await self._redis.incr(PAUSES) if self._paused else None


async def main() -> None:
    url = os.environ["REDIS"]
    async with connect(url) as redis, Bus(url) as bus:
        consumer = Consumer(redis, bus)

        def stop() -> Any:
            return bus.spawn(consumer.stop())

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        await consumer.run()


if __name__ == "__main__":
    asyncio.run(main())
