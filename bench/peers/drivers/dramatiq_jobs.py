"""Jobs through dramatiq, which acknowledges each job when it is done."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.drivers.orders import mark, produce, server

broker = RedisBroker(url=server())
dramatiq.set_broker(broker)


def take(message: str) -> None:
    mark()


job = dramatiq.actor(take, actor_name="take", broker=broker)

if __name__ == "__main__":
    produce(job.send)
