"""The benchmark of hqueue: its clients do what they time, and each figure has as many samples as rounds."""

import socket

import httpx
import pytest

from bench import testbed
from bench.queue import clients, rates, sizes
from penstock.testing.server import EmbeddedServer
from tests.http.queue_service import QueueService, new_name

pytestmark = pytest.mark.slow


def info(service: QueueService, name: str) -> dict[str, object]:
    found: dict[str, object] = httpx.get(f"{service.url}/queues/{name}/info").json()
    return found


def test_workers_end_as_many_tasks_as_they_say_one_by_one_and_in_batches(service: QueueService) -> None:
    name = new_name()
    clients.fill(service.port, [name], 150, 32)
    found = clients.work(service.port, [name], 4, 70, 1)
    assert found["seconds"] > found["fetch p99"] >= found["fetch p50"] > 0
    assert found["ack p99"] >= found["ack p50"] > 0
    assert info(service, name) | {"waiting": 80, "ended": 70, "inHand": 0} == info(service, name)
    clients.work(service.port, [name], 2, 80, 10)
    assert info(service, name) | {"waiting": 0, "ended": 150, "inHand": 0} == info(service, name)


def test_an_answer_that_comes_in_pieces_is_read_wholly() -> None:
    answer = b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-length: 5\r\n\r\nhello"
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def ask() -> clients.Client:
            for _ in range(2):
                found = yield clients.get("piece", "/")
                assert found[:2] == (200, b"hello")

        connection = clients.Connection(listening.getsockname()[1], ask())
        server, _ = listening.accept()
        with server, connection.socket:
            connection.send()
            for piece in (answer[:9], answer[9:-3], answer[-3:-1]):
                server.sendall(piece)
                assert connection.receive() is None
            server.sendall(answer[-1:])
            whole = connection.receive()
            assert whole
            assert connection.go_on(whole)
            server.sendall(answer)
            again = connection.receive()
            assert again
            assert not connection.go_on(again)


def test_each_figure_has_a_sample_of_each_round_and_the_limit_that_is_wanted() -> None:
    with EmbeddedServer() as server:
        bed = testbed.Testbed(server)
        one = rates.one_worker(bed, rounds=1, tasks=20)
        assert [(len(each.samples), each.limit, each.at_least) for each in one] == [(1, 2, False)] * 2
        many = rates.many_workers(bed, rounds=1, tasks=160)
        assert [(len(each.samples), each.limit) for each in many] == [(1, 0.5), (1, 3)]
        sealed = rates.sealing(bed, rounds=1, tasks=100)
        assert [(len(each.samples), each.limit) for each in sealed] == [(1, 0.85)] * 3
        flat = sizes.fetching(bed, rounds=1, fetches=5, most=1_000)
        assert [(len(each.samples), each.limit, each.at_least) for each in flat] == [(1, 1.3, False)] * 3
        assert len({each.name for each in (*one, *many, *sealed, *flat)}) == 10
        assert all(each.samples[0] > 0 for each in (*one, *many, *sealed, *flat))
