"""Jobs, and requests with answers, through Celery, with prefetch and acks as its guide advises for short tasks."""

import sys

from celery import Celery

from bench.peers.drivers.orders import ask, mark, produce, server

app = Celery("bench", broker=server(), backend=server())
app.conf.update(task_acks_late=True, worker_prefetch_multiplier=128, broker_connection_retry_on_startup=True)


def take(message: str) -> None:
    mark()


def echo(message: str) -> str:
    return message


job = app.task(take, name="take", ignore_result=True)
request = app.task(echo, name="echo")

if __name__ == "__main__":
    if sys.argv[1] == "produce":
        produce(job.delay)
    else:
        ask(lambda message: request.delay(message).get(timeout=10))
