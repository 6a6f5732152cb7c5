"""Jobs through RQ."""

from redis import Redis
from rq import Queue

from bench.peers.drivers.orders import mark, produce_batches, server


def take(message: str) -> None:
    mark()


if __name__ == "__main__":
    queue = Queue(connection=Redis.from_url(server()))
    job = f"{take.__module__.replace('__main__', 'bench.peers.drivers.rq_jobs')}.take"
    produce_batches(
        lambda batch: queue.enqueue_many([Queue.prepare_data(job, (each,), result_ttl=0) for each in batch])
    )
