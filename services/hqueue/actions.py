"""What a request does, by the verb that its path asks for."""

from collections.abc import Awaitable, Callable

from services.hqueue.producer_actions import ProducerActions
from services.hqueue.query_actions import QueryActions
from services.hqueue.request import Request, Response
from services.hqueue.served import Served
from services.hqueue.worker_actions import WorkerActions

Action = Callable[[Request], Awaitable[Response]]


def actions_of(served: Served) -> dict[str, Action]:
    """Return the actions by verb, see ``request``."""
    producer, worker, query = ProducerActions(served), WorkerActions(served), QueryActions(served)
    return {
        "add": producer.add,
        "cancel": producer.cancel,
        "retry": producer.retry,
        "rewind": producer.rewind,
        "fetch": worker.fetch,
        "ack": worker.ack,
        "heartbeat": worker.heartbeat,
        "info": query.info,
        "page": query.page,
        "show": query.show,
    }
