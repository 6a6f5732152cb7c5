"""Fan-out, jobs, and requests with answers through RabbitMQ with pika; messages and queues are in memory."""

import itertools
import sys
import time
from typing import Any, Final

import pika

from bench.peers.drivers.orders import ask, mark, messages, orders, produce, server

QUEUES: Final = ("out0", "out1")
PREFETCH: Final = 1_000


def publish_to_all(channel: Any) -> None:
    """Publish to a fanout exchange; a message counts once the broker reports it in both queues."""
    channel.exchange_declare("all", "fanout")
    for queue in QUEUES:
        channel.queue_declare(queue)
        channel.queue_bind(queue, "all")
    source, published = messages(), 0
    for count in orders():
        for message in itertools.islice(source, count):
            channel.basic_publish("all", "", message.encode())
        published += count
        for queue in QUEUES:
            while channel.queue_declare(queue, passive=True).method.message_count < published:
                time.sleep(0.002)
        mark(count)


def publish(channel: Any) -> None:
    channel.queue_declare("jobs")
    produce(lambda message: channel.basic_publish("", "jobs", message.encode()))


def work(channel: Any) -> None:
    def take(channel: Any, method: Any, properties: object, message: bytes) -> None:
        channel.basic_ack(method.delivery_tag)
        mark()

    channel.queue_declare("jobs")
    channel.basic_qos(prefetch_count=PREFETCH)
    channel.basic_consume("jobs", take)
    channel.start_consuming()


def answer(channel: Any) -> None:
    def take(channel: Any, method: Any, properties: Any, message: bytes) -> None:
        channel.basic_publish("", properties.reply_to, message)
        channel.basic_ack(method.delivery_tag)

    channel.queue_declare("requests")
    channel.basic_consume("requests", take)
    channel.start_consuming()


def request(channel: Any) -> None:
    """Send requests with direct reply-to."""
    direct = "amq.rabbitmq.reply-to"
    received: list[bytes] = []
    channel.queue_declare("requests")
    channel.basic_consume(direct, lambda *delivery: received.append(delivery[-1]), auto_ack=True)

    def exchange(message: str) -> str:
        channel.basic_publish("", "requests", message.encode(), pika.BasicProperties(reply_to=direct))
        while not received:
            channel.connection.process_data_events(time_limit=10)
        return received.pop().decode()

    ask(exchange)


if __name__ == "__main__":
    roles = {"fan-out": publish_to_all, "produce": publish, "work": work, "answer": answer, "ask": request}
    roles[sys.argv[1]](pika.BlockingConnection(pika.URLParameters(server())).channel())
