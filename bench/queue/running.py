"""hqueue and its clients as processes of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench.side import Side, side
from bench.testbed import PYTHON, Testbed
from tests.http.queue_service import QueueService
from tests.support.harness import until

MANY: Final = 10_000
"""Connections that one address may have here."""


@contextmanager
def hqueue(bed: Testbed, url: str = "", **settings: object) -> Iterator[tuple[QueueService, Side]]:
    """Run hqueue on the server at ``url``, by default that of ``bed``; yield it and a process of clients."""
    service = QueueService(url or bed.url, bed.log, max_connections_per_address=MANY, **settings)
    with service.process:
        until(service.is_ready)
        with side(*PYTHON, "bench.queue.clients", str(service.port)) as clients:
            yield service, clients
        service.process.stop()
