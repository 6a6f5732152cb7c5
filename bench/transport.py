"""Figures of vpush, each compared with its reference in the same run."""

import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis

from bench.connection import Connection, packed
from bench.figures import MIB, Figure
from bench.testbed import OUT, PYTHON, SEED, SOURCE, TRANSPORT, Testbed, peak_bytes, resident_bytes
from penstock.base.keys import Keys
from penstock.base.ports import free_port
from penstock.testing.server import EmbeddedServer
from tests.support.harness import ROOT, until

BARE: Final = ":bare"
"""The route of the bare client."""
SHOVEL_RATE: Final = 13_500
"""Messages a second of RabbitMQ's shovel at 50 ms round trip, measured before on a machine of this kind."""
WIRE_BYTES: Final = 39
"""Bytes on the wire for a message of 32 bytes."""
KEYS: Final = Keys(TRANSPORT)


@dataclass(frozen=True)
class Route:
    """A route from a list of one server to a list of another, served by a running vpush or bare client."""

    source: Testbed
    target: Testbed
    name: str = ""

    def seconds(self, messages: int, after_first: bool = False) -> float:
        """Return the seconds from the appearance of the backlog until the target server holds all messages.

        With ``after_first``, start when the target holds the first one, to exclude the latency of the link.
        """
        out, blocked_before = OUT + self.name, self.source.blocked_clients()
        begin = self.source.publish_backlog(SOURCE + self.name)
        if after_first:
            until(lambda: self.target.redis.exists(out), timeout=120, every=0.0005)
            begin = time.perf_counter()
        until(lambda: self.target.redis.llen(out) >= messages, timeout=120, every=0.001)
        seconds = time.perf_counter() - begin
        ends = [(bed.redis.lindex(name, 0), bed.redis.lindex(name, -1)) for bed, name in self._copies(out)]
        assert ends[0] == ends[1], f"the seed's first and last are {ends[0]}, those that arrived {ends[1]}"
        until(lambda: self.source.blocked_clients() >= blocked_before)
        self.target.redis.unlink(out)
        until(lambda: self.target.redis.info("memory")["lazyfree_pending_objects"] == 0)
        return seconds

    def _copies(self, out: str) -> list[tuple[Testbed, str]]:
        return [(self.source, SEED), (self.target, out)]


@contextmanager
def bare_client(source: Testbed, target: Testbed) -> Iterator[None]:
    """Run ``bench.pipeline`` from ``SOURCE`` to ``OUT`` of the route ``BARE``."""
    ends = str(source.server.port), SOURCE + BARE, str(target.server.port), OUT + BARE
    with source.run_process(*PYTHON, "bench.pipeline", *ends):
        yield


@contextmanager
def link(server: EmbeddedServer, round_trip: float) -> Iterator[int]:
    """Yield a port that leads to ``server`` with that round-trip time in seconds."""
    port = free_port()
    command = (*PYTHON, "bench.delay", str(port), str(server.port), str(round_trip))
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            until(lambda: _listens(port))
            yield port
        finally:
            process.kill()


def _listens(port: int) -> bool:
    try:
        return bool(Connection(port).exchange(packed("PING"), 1))
    except OSError:
        return False


def bytes_a_second(port: int, round_trip: float, chunks: int = 64) -> float:
    """Return the throughput of a link to the server behind it, with pipelined commands of 1 MiB."""
    connection = Connection(port)
    begin = time.perf_counter()
    connection.exchange(packed("SET", "bench:piece", b"x" * MIB) * chunks, chunks)
    return chunks * MIB / (time.perf_counter() - begin - round_trip)


def backlog(bed: Testbed, rounds: int, messages: int) -> Figure:
    """Measure messages a second over those of a bare client with as many batches in flight, alternating."""
    bed.seed(messages, 32)
    with EmbeddedServer() as server:
        target = Testbed(server)
        routes = Route(bed, target), Route(bed, target, BARE)
        with bed.vpush(target.url), bare_client(bed, target):
            pairs = [[route.seconds(messages) for route in routes] for _ in range(rounds + 1)][1:]
    ours, theirs = (messages / statistics.median(each) / 1000 for each in zip(*pairs, strict=True))
    name = f"{messages:,} x 32 B to another server, through the service / bare pipelining client"
    note = f"{ours:,.0f} k/s against {theirs:,.0f} k/s, from a backlog's appearance to the last message there"
    return Figure(name, "x", [bare / service for service, bare in pairs], 0.7, at_least=True, note=note)


def distance(bed: Testbed, rounds: int, messages: int) -> list[Figure]:
    """Measure messages a second over a slow link over those to a near server, alternating, and against a shovel.

    A short backlog takes less time than half a round trip, which every sender loses: near and far, it is timed from the
    arrival of the first message to that of the last. A backlog ten times as long is timed from its appearance.
    """
    trips, longer = (0.05, 0.2), 10 * messages
    with EmbeddedServer() as server, ExitStack() as stack:
        target = Testbed(server)
        ports = [server.port, *(stack.enter_context(link(server, trip)) for trip in trips)]
        link_speeds = [bytes_a_second(port, trip) / 1e6 for port, trip in zip(ports[1:], trips, strict=True)]
        routes = [Route(bed, target, f":{place}") for place in range(len(ports))]
        for route, port in zip(routes, ports, strict=True):
            stack.enter_context(bed.vpush(f"redis://127.0.0.1:{port}/0", route.name))
        turns = {}
        for many, times in (messages, rounds), (longer, 3):
            bed.seed(many, 32)
            after_first = many == messages
            turns[many] = [[route.seconds(many, after_first) for route in routes] for _ in range(times + 1)][1:]
    found = [
        _by_distance(many, many == messages, trip, [(turn[0], turn[place]) for turn in turns[many]], least, speed)
        for many in turns
        for place, (trip, least, speed) in enumerate(zip(trips, (0.7, 0.5), link_speeds, strict=True), start=1)
    ]
    name = f"{longer:,} x 32 B at 50 ms round trip, messages a second from their appearance here"
    note = f"four times RabbitMQ's shovel there: {SHOVEL_RATE:,}/s, as measured before on a machine of this kind"
    rates = [longer / turn[1] for turn in turns[longer]]
    return [*found, Figure(name, "/s", rates, 4 * SHOVEL_RATE, at_least=True, note=note)]


def _by_distance(
    messages: int, after_first: bool, trip: float, pairs: list[tuple[float, float]], least: float, link_speed: float
) -> Figure:
    """Return the figure of ``pairs``: seconds to the near server, and over a link of ``trip`` seconds round trip."""
    near, distant = (statistics.median(each) for each in zip(*pairs, strict=True))
    note = (
        f"{messages / distant / 1000:,.0f} k/s against {messages / near / 1000:,.0f} k/s; "
        f"the link passes {link_speed:,.0f} MB/s, "
        f"of which this needs {messages * WIRE_BYTES / distant / 1e6:,.0f}"
    )
    since = "from the first one there" if after_first else "from their appearance here"
    name = f"{messages:,} x 32 B at {1000 * trip:.0f} ms round trip / at none, messages a second {since}"
    return Figure(name, "x", [close / away for close, away in pairs], least, at_least=True, note=note)


class LatencyProbe:
    """A publisher at the source and a reader already waiting at the target; all is idle before each message."""

    def __init__(self, port: int, source: str, target_port: int, out: str) -> None:
        self._publisher, self._reader = Connection(port), Connection(target_port)
        self._push, self._take = packed("LPUSH", source, b"x" * 32), packed("BLPOP", out, 5)

    def seconds(self) -> float:
        self._reader.exchange(self._take, 0)
        time.sleep(0.003)
        begin = time.perf_counter()
        self._publisher.exchange(self._push, 1)
        (popped,) = self._reader.exchange(b"", 1)
        assert popped, "the message did not arrive within 5 s"
        return time.perf_counter() - begin

    def round_trip(self) -> float:
        """Return the seconds of a PING to the target, equally idle."""
        time.sleep(0.003)
        begin = time.perf_counter()
        self._reader.exchange(packed("PING"), 1)
        return time.perf_counter() - begin


def one_at_a_time(bed: Testbed, rounds: int, messages: int = 200) -> Figure:
    """Measure what the service adds to a direct push to the target, in round trips measured at the same time."""
    added, rows = [], []
    with EmbeddedServer() as server:
        target, ports = Testbed(server), (bed.server.port, server.port)
        with bed.vpush(target.url), bare_client(bed, target):
            direct = LatencyProbe(ports[1], "bench:direct", ports[1], "bench:direct")
            service, client = (LatencyProbe(ports[0], SOURCE + name, ports[1], OUT + name) for name in ("", BARE))
            measurements = service.seconds, direct.seconds, client.seconds, direct.round_trip
            for turn in range(rounds + 1):
                row = [statistics.median(take() for _ in range(messages)) * 1e6 for take in measurements]
                if turn:
                    added.append((row[0] - row[1]) / row[3])
                    rows.append(row)
    ours, bare, forwarded, trip = (statistics.median(column) for column in zip(*rows, strict=True))
    note = (
        f"p50 {ours:.0f} us against {bare:.0f} us ({ours / bare:.1f} x), a PING {trip:.0f} us; "
        f"through a bare client that waits, pops and pushes: {forwarded:.0f} us"
    )
    name = "one message, idle, here to there, p50: more than LPUSH to the target"
    return Figure(name, "round trips", added, 2, note=note)


def memory(bed: Testbed, waiting: int, few: int = 100_000) -> list[Figure]:
    """Measure resident memory while a long backlog is moved and after the target is killed, against a short backlog."""
    peaks, left = [], []
    for messages in (few, waiting):
        bed.redis.flushall()
        with EmbeddedServer() as server:
            target = Testbed(server)
            with bed.vpush(target.url) as vpush:
                _fill(bed, messages)
                moved = max(messages // 10, few)
                until(lambda target=target, moved=moved: target.redis.llen(OUT) >= moved, timeout=60)  # type: ignore[misc]
                peaks.append(peak_bytes(vpush.pid) / 1e6)
                server.kill()
                time.sleep(3)
                left.append(resident_bytes(vpush.pid) / 1e6)
    bed.redis.flushall()
    name = f"resident memory, {waiting:,} x 32 B waiting"
    note = f"the highest; with {few:,} waiting {peaks[0]:.1f} MB"
    return [
        Figure(f"{name}, {moved:,} of them moved", "MB", peaks[1:], 80, note=note),
        Figure(f"{name}, the target away", "MB", left[1:], 80, note=f"with {few:,} waiting {left[0]:.1f} MB"),
        Figure(f"{name} / {few:,}", "x", [peaks[1] / peaks[0]], 1.1),
    ]


def _fill(bed: Testbed, messages: int) -> None:
    """Make that many messages appear in ``SOURCE`` at once."""
    burst = packed("LPUSH", "bench:backlog", *[b"x" * 32] * 1_000) * 100
    connection = Connection(bed.server.port)
    for _ in range(messages // 100_000):
        connection.exchange(burst, 100)
    bed.redis.rename("bench:backlog", SOURCE)


def takeover(bed: Testbed, rounds: int) -> list[Figure]:
    """Measure the seconds from ``kill -9`` of the active replica of two to the next arrival, under load."""
    seconds = []
    with EmbeddedServer() as server, ExitStack() as stack:
        target = Testbed(server)
        replicas = [stack.enter_context(bed.replica(target.url)) for _ in range(2)]
        stack.enter_context(publishing(bed))
        for turn in range(rounds):
            until(lambda: all(_id_of(bed, each.pid) for each in replicas))
            until(lambda: target.redis.llen(OUT))
            time.sleep(0.5 + 0.13 * turn)  # to meet the lease at a different age each time
            active = next(each for each in replicas if _id_of(bed, each.pid) == bed.redis.hget(KEYS.lease, "owner"))
            begin = time.perf_counter()
            active.kill()
            time.sleep(0.05)  # until all that it sent has arrived
            arrived = target.redis.llen(OUT)
            until(lambda arrived=arrived: target.redis.llen(OUT) > arrived, every=0.005)  # type: ignore[misc]
            seconds.append(time.perf_counter() - begin)
            active.start()
    name = "kill -9 of the active one of two replicas, under load, to the next message there"
    return [
        Figure(name, "s", seconds, 3, note="10,000 messages a second"),
        Figure(f"{name}, the longest of {rounds}", "s", [max(seconds)], 3),
    ]


def _id_of(bed: Testbed, pid: int) -> bytes | None:
    """Return the id under which the process ``pid`` is registered, or None."""
    redis: Any = bed.redis
    for id in redis.lrange(KEYS.ids, 0, -1):
        if redis.hget(f"{TRANSPORT}:{id.decode()}", "pid") == b"%d" % pid:
            return bytes(id)
    return None


@contextmanager
def publishing(bed: Testbed, burst: int = 100, every: float = 0.01) -> Iterator[None]:
    """Push ``burst`` messages to ``SOURCE`` every ``every`` seconds, in a thread."""
    done, redis = threading.Event(), Redis.from_url(bed.url)

    def publish() -> None:
        while not done.wait(every):
            redis.lpush(SOURCE, *[b"x" * 32] * burst)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        yield
    finally:
        done.set()
        publisher.join()
