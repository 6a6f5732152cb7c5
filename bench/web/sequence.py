"""Figures of one request at a time, of bodies, and of a service that waits or does nothing."""

import json
import resource
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from bench.connection import Connection, packed
from bench.figures import KIB, MIB, Figure, commands_a_second
from bench.pinger import pinging
from bench.testbed import PYTHON, Testbed, resident_bytes
from bench.web.load import OUT, echo_worker, himporter, uvicorn, without_wrk, wrk
from tests.support.harness import ROOT, until

REPLIES: Final = "bench:replies"
SIZES: Final = (KIB, 100 * KIB, MIB)
HEADERS: Final = [["host", "127.0.0.1"], ["accept-encoding", "identity"], ["x-forwarded-for", "127.0.0.1"]]
WAITING: Final = 10_000
BODIES: Final = 16
"""Bodies under way at a time."""
GET: Final = b"GET / HTTP/1.1\r\nHost: %b\r\nAccept-Encoding: identity\r\n\r\n"


def one_at_a_time(bed: Testbed, rounds: int, requests: int) -> list[Figure]:
    """Measure one request at a time beside the same client that pushes a message and waits for its answer in a list."""
    pairs: list[list[list[float]]] = []
    with himporter(bed) as (_, url), echo_worker(bed):
        place = urlsplit(url)
        through = socket.create_connection((place.hostname, place.port))
        through.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        acts = partial(_get, through, GET % place.netloc.encode()), partial(_move, Connection(bed.server.port))
        pairs += [[_times(act, requests) for act in acts] for _ in range(rounds + 1)]
    found = []
    of: Callable[[list[float]], float]
    for name, of in (("p50", statistics.median), ("p99", _p99)):
        ours, theirs = zip(*((of(one), of(other)) for one, other in pairs[1:]), strict=True)
        note = f"{statistics.median(ours) * 1e6:,.0f} us against {statistics.median(theirs) * 1e6:,.0f} us"
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        found.append(
            Figure(f"himporter, one request at a time, {name} / two bare list moves", "x", ratios, 2, note=note)
        )
    return found


def _times(act: Callable[[], object], many: int) -> list[float]:
    found = []
    for _ in range(many):
        begin = time.perf_counter()
        act()
        found.append(time.perf_counter() - begin)
    return found


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[-1]


def _get(through: socket.socket, request: bytes) -> None:
    """Ask as plainly as ``_move`` does: Python's own client of HTTP would cost more than the importer."""
    through.sendall(request)
    answer = b""
    while not answer.endswith(b"\r\n\r\nhello\n"):
        answer += through.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 200 ")


def _move(connection: Connection) -> None:
    """Push the message that himporter makes of such a request, and wait for the answer."""
    meta = {"id": "1-a", "replyTo": REPLIES, "deadline": 9e9}
    request = {**meta, "method": "GET", "path": "/", "query": "", "headers": HEADERS, "meta": meta}
    commands = packed("LPUSH", OUT, json.dumps(request)), packed("BLMOVE", REPLIES, "bench:taken", "RIGHT", "LEFT", 10)
    *_, answer, _ = connection.exchange(b"".join([*commands, packed("DEL", "bench:taken")]), 3)
    assert json.loads(answer)["body"] == "hello\n"


def bodies(bed: Testbed, rounds: int, seconds: int) -> list[Figure]:
    """Measure bytes a second that come back as they were sent, beside uvicorn, and the longest PING meanwhile.

    Measure beside bare list moves, too: no program that hands bodies on through lists can be faster than these.
    """
    names = {size: f"himporter, bodies of {size // KIB:,} KB echoed, bytes a second / uvicorn's" for size in SIZES}
    if missing := without_wrk():
        return [Figure(name, "x", [], 0.4, missing=missing) for name in names.values()]
    found, moved, pings = [], [], []
    with ExitStack() as stack:
        _, ours = stack.enter_context(himporter(bed))
        bare = stack.enter_context(uvicorn(bed))
        stack.enter_context(echo_worker(bed))
        connection = Connection(bed.server.port)
        pinger = stack.enter_context(pinging(bed.server.port))
        for size, name in names.items():
            script = bed.log.with_name(f"body-{size}.lua")
            script.write_text(f'wrk.method = "POST"\nwrk.body = string.rep("x", {size})\n')
            turns, longest = [], []
            for _ in range(rounds + 1):
                pinger.begin()
                rate = _bytes(ours, seconds, size, script)
                longest.append(pinger.longest() * 1000)
                turns.append((rate, _bytes(bare, seconds, size, script), _moved_bytes(connection, seconds, size)))
            rates = [*zip(*turns[1:], strict=True)]
            one, other, lists = (f"{statistics.median(each) / 1e6:,.0f} MB/s" for each in rates)
            ratios = [each[0] / each[1] for each in turns[1:]]
            found.append(Figure(name, "x", ratios, 0.4, at_least=True, note=f"{one} against {other}"))
            name = name.replace("uvicorn's", f"two bare list moves, {BODIES} at a time")
            ratios = [each[0] / each[2] for each in turns[1:]]
            if size > KIB:  # of small ones the requests cost, not the bytes
                moved.append(Figure(name, "x", ratios, 0.6, at_least=True, note=f"{one} against {lists}"))
            pings.append(Figure(f"longest PING of the server, bodies of {size // KIB:,} KB", "ms", longest[1:], 50))
    return found + moved + pings


def _moved_bytes(connection: Connection, seconds: int, size: int) -> float:
    """Push messages with such a body and wait for the answers in a list, again and again; return bytes a second."""
    request = json.dumps({"id": "1-a", "replyTo": REPLIES, "body": "x" * size})
    push, take = packed("LPUSH", OUT, *[request] * BODIES), packed("BLMPOP", 0, 1, REPLIES, "RIGHT", "COUNT", BODIES)
    many, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        connection.exchange(push, 1)
        answered = 0
        while answered < BODIES:
            [[_, answers]] = connection.exchange(take, 1)
            answered += len(answers)
        many += BODIES
    return many * size / (time.perf_counter() - begin)


def _bytes(url: str, seconds: int, size: int, script: Path) -> float:
    return wrk(url, seconds, BODIES, script).requests * size


def waiting(bed: Testbed, idle_seconds: int) -> list[Figure]:
    """Measure the memory of himporter with requests that wait, and its commands while it is idle."""
    with himporter(
        bed, max_waiting=WAITING, max_connections=WAITING + 100, max_connections_per_address=WAITING + 100
    ) as (
        service,
        url,
    ):
        time.sleep(2)
        commands = commands_a_second(bed, idle_seconds)
        with _asking(url):
            until(lambda: bed.redis.llen(OUT) == WAITING, timeout=120)
            memory = resident_bytes(service.pid) / 1e6
        bed.redis.unlink(OUT)
    return [
        Figure(f"himporter: resident memory with {WAITING:,} requests waiting", "MB", [memory], 150),
        Figure("himporter, idle: commands a second, those inside scripts included", "/s", [commands], 3),
    ]


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Have another process ask ``WAITING`` requests at once, and wait."""
    with subprocess.Popen([*PYTHON, "bench.web.sequence", urlsplit(url).netloc], cwd=ROOT) as process:
        try:
            yield
        finally:
            process.kill()


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of single requests, of bodies, and of waiting."""
    rounds, seconds = (3, 2) if quick else (7, 5)
    return [
        lambda bed: one_at_a_time(bed, 3 * rounds, 200),
        lambda bed: bodies(bed, rounds, seconds),
        lambda bed: waiting(bed, 10 if quick else 60),
    ]


def ask_all(place: str, many: int) -> None:
    """Open ``many`` connections, ask one request on each, and wait to be killed."""
    host, port = place.split(":")
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (many + 100, max(many + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    )
    request = f"GET / HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()
    connections = []
    for _ in range(many):
        connections.append(socket.create_connection((host, int(port))))
        connections[-1].sendall(request)
    signal.pause()


if __name__ == "__main__":
    ask_all(sys.argv[1], WAITING)
