"""Clients of hqueue in one process, on bare sockets: ``python -m bench.queue.clients PORT`` takes orders.

An order is a line of JSON, the name of a function below and its arguments; the answer is a line of JSON, too. A client
is a generator: it yields requests, one at a time, and is sent their answers. So a request costs this process some
microseconds, and all figures have the same client.
"""

import json
import re
import select
import socket
import statistics
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from itertools import cycle, islice
from typing import Any, Final, NamedTuple

CHUNK_BYTES: Final = 1 << 18
MAX_BATCH: Final = 100
FILLING: Final = 16
"""Connections that add tasks at a time."""
WAIT_SECONDS: Final = 20
TOKEN: Final = re.compile(rb'"taskToken":"([^"]+)"')
ADDED: Final = re.compile(rb'"value":\[?(\d+)')
LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d+)\r\n")


class Request(NamedTuple):
    """A request as it is sent; times are kept by ``kind``."""

    kind: str
    data: bytes


class Answer(NamedTuple):
    """Its answer, which took ``seconds``."""

    status: int
    body: bytes
    seconds: float


Client = Generator[Request, Answer, None]


def get(kind: str, path: str) -> Request:
    return Request(kind, f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())


def post(kind: str, path: str, body: bytes) -> Request:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return Request(kind, head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body))


class Connection:
    """The socket of one client, which has one request under way."""

    def __init__(self, port: int, client: Client) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = next(client)
        self._client = client
        self._received = b""
        self._parts: list[bytes] = []
        self._missing = 0
        self._since = 0.0

    def send(self) -> None:
        """Send the request that is due."""
        self._since = time.perf_counter()
        self.socket.sendall(self.request.data)

    def receive(self) -> Answer | None:
        """Read what has come; return the answer once it is there."""
        data = self.socket.recv(CHUNK_BYTES)
        assert data, "the service has closed a connection"
        self._parts.append(data)
        if not self._missing:
            self._received = b"".join(self._parts)
            head, end, rest = self._received.partition(b"\r\n\r\n")
            if not end:
                return None
            found = LENGTH.search(head + b"\r\n")
            self._parts, self._missing = [rest], int(found[1]) - len(rest) if found else 0
        else:
            self._missing -= len(data)
        if self._missing:
            return None
        body, self._parts = b"".join(self._parts), []
        return Answer(int(self._received[9:12]), body, time.perf_counter() - self._since)

    def go_on(self, answer: Answer) -> bool:
        """Give the client its answer, and send its next request; return False if that was its last."""
        try:
            self.request = self._client.send(answer)
        except StopIteration:
            self.socket.close()
            return False
        self.send()
        return True


def drive(port: int, clients: Iterable[Client], enough: Callable[[], bool] = lambda: False) -> dict[str, float]:
    """Run ``clients`` to their end, or until there is ``enough``.

    Return the seconds that all took, and p50 and p99 of each kind of request.
    """
    connections = {each.socket.fileno(): each for each in [Connection(port, client) for client in clients]}
    took: dict[str, list[float]] = {}
    with select.epoll() as poll, ExitStack() as opened:
        for number, each in connections.items():
            opened.enter_context(each.socket)
            poll.register(number, select.EPOLLIN)
        begin = time.perf_counter()
        for each in connections.values():
            each.send()
        while connections and not enough():
            for number, _ in poll.poll():
                connection = connections[number]
                answer = connection.receive()
                if answer is not None:
                    took.setdefault(connection.request.kind, []).append(answer.seconds)
                    if not connection.go_on(answer):
                        del connections[number]
    found = {"seconds": time.perf_counter() - begin}
    for kind, seconds in took.items():
        found |= {f"{kind} p50": statistics.median(seconds), f"{kind} p99": percentile(seconds, 99)}
    return found


def percentile(values: list[float], percent: int) -> float:
    """Return the value that ``percent`` of ``values`` do not exceed."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def hello(port: int, clients: int, requests: int) -> dict[str, float]:
    """Have ``clients`` ask for the answer that the service gives at once, ``requests`` times together."""

    def ask(times: int) -> Client:
        for _ in range(times):
            answer = yield get("hello", "/live")
            assert answer.status == 200, answer

    return drive(port, (ask(requests // clients) for _ in range(clients)))


def work(port: int, queues: list[str], clients: int, tasks: int, batch: int) -> dict[str, float]:
    """Have ``clients`` fetch and acknowledge ``tasks`` together, ``batch`` at a time, each from the next of ``queues``.

    The tasks must be there.
    """
    names, left = cycle(queues), iter(range(tasks // batch))
    return drive(port, (_worker(f"w{number}", names, left, batch) for number in range(clients)))


def _worker(name: str, queues: Iterator[str], turns: Iterator[int], batch: int) -> Client:
    """Fetch and acknowledge once for each of ``turns``, which workers share."""
    many = b'"max":%d,' % batch if batch > 1 else b""
    body = b'{"workerId":"%b",%b"timeToRecover":30}' % (name.encode(), many)
    for _ in turns:
        queue = next(queues)
        answer = yield post("fetch", f"/queues/{queue}/fetch", body)
        tokens = _tokens(answer, batch)
        answer = yield post("ack", f"/queues/{queue}/ack", _acks(tokens, batch))
        assert answer.status == 200, answer
        assert answer.body.count(b'"state":"done"') == batch, answer


def _tokens(answer: Answer, many: int) -> list[bytes]:
    """Return the tokens of ``many`` tasks, which come before the value of each."""
    found = [each[1] for each in islice(TOKEN.finditer(answer.body), many)]
    assert len(found) == many, answer
    return found


def _acks(tokens: list[bytes], batch: int) -> bytes:
    acks = [b'{"taskToken":"%b","result":42}' % token for token in tokens]
    return b"[%b]" % b",".join(acks) if batch > 1 else acks[0]


def fill(port: int, queues: list[str], tasks: int, size: int) -> dict[str, float]:
    """Add ``tasks`` to each of ``queues``, with values of ``size`` bytes."""
    sizes = [MAX_BATCH] * (tasks // MAX_BATCH) + [tasks % MAX_BATCH] * (tasks % MAX_BATCH > 0)
    bodies = {many: b"[%b]" % b",".join([_task(size)] * many) for many in set(sizes)}
    turns = iter([(queue, bodies[many]) for many in sizes for queue in queues])

    def add() -> Client:
        for queue, body in turns:
            answer = yield post("add", f"/queues/{queue}/tasks", body)
            assert answer.status == 201, answer

    return drive(port, (add() for _ in range(min(FILLING, len(queues) * len(sizes)))))


def _task(size: int) -> bytes:
    return b'{"value":"%b"}' % (b"x" * (size - 2))


def circle(port: int, queue: str, clients: int, tasks: int, size: int) -> dict[str, float]:
    """Have ``clients`` add, fetch and acknowledge ``tasks`` together, each with a value of ``size`` bytes."""
    left, added = iter(range(tasks)), post("add", f"/queues/{queue}/tasks", _task(size))

    def go_round(name: str) -> Client:
        for turn in left:
            answer = yield added
            assert answer.status == 201, answer
            yield from _worker(name, iter([queue]), iter([turn]), 1)

    return drive(port, (go_round(f"w{number}") for number in range(clients)))


def poll(port: int, queue: str, workers: int, tasks: int) -> dict[str, float]:
    """Have ``workers`` wait for tasks and do ``tasks`` together; answer with the times (s) from adding to fetching.

    A task's value is the time at which its request was sent: see ``add_now_and_then``.
    """
    took: list[float] = []

    def wait(name: str) -> Client:
        body = b'{"workerId":"%b","timeToRecover":60,"wait":%d}' % (name.encode(), WAIT_SECONDS)
        while True:
            answer = yield post("fetch", f"/queues/{queue}/fetch", body)
            if answer.status == 204:
                continue
            now, found = time.perf_counter_ns(), ADDED.search(answer.body)
            assert found, answer
            took.append((now - int(found[1])) / 1e9)
            answer = yield post("ack", f"/queues/{queue}/ack", _acks(_tokens(answer, 1), 1))
            assert answer.status == 200, answer

    drive(port, (wait(f"p{number}") for number in range(workers)), lambda: len(took) == tasks)
    return {"p50": statistics.median(took), "p99": percentile(took, 99)}


def add_now_and_then(port: int, queue: str, tasks: int, interval: float) -> dict[str, float]:
    """Add ``tasks``, one at a time, ``interval`` seconds apart."""

    def add() -> Client:
        for _ in range(tasks):
            time.sleep(interval)
            answer = yield post("add", f"/queues/{queue}/tasks", b'{"value":%d}' % time.perf_counter_ns())
            assert answer.status == 201, answer

    return drive(port, [add()])


ORDERS: Final = {each.__name__: each for each in (hello, work, fill, circle, poll, add_now_and_then)}

if __name__ == "__main__":
    for line in sys.stdin:
        order, *values = json.loads(line)
        function: Any = ORDERS[order]
        print(json.dumps(function(int(sys.argv[1]), *values)), flush=True)
