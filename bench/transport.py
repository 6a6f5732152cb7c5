"""Figures of vpush, each against its reference in the same run."""

import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis

from bench.figures import MIB, Figure
from bench.line import Line, packed
from bench.stage import OUT, PYTHON, SEED, SOURCE, TRANSPORT, Stage, peak_bytes, resident_bytes
from penstock.keys import Keys
from penstock.testing.server import EmbeddedServer, free_port
from tests.harness import ROOT, until

BARE: Final = ":bare"
"""The route of the bare client."""
SHOVEL: Final = 13_500
"""Messages a second that RabbitMQ's shovel moves at 50 ms round trip on a machine of this kind: shared/PEERS.md."""
SENT: Final = 39
"""Bytes on the way for a message of 32."""
KEYS: Final = Keys(TRANSPORT)


@dataclass(frozen=True)
class Route:
    """A way from a list here to one there, with somebody beside it who moves what appears."""

    here: Stage
    there: Stage
    name: str = ""

    def seconds(self, messages: int, after_first: bool = False) -> float:
        """From the appearance of the seed here to the last one's presence there, as the target itself says.

        With ``after_first`` from the first one's presence there: without the time that the link needs for anything.
        """
        out, waits = OUT + self.name, self.here.blocked()
        begin = self.here.appear(SOURCE + self.name)
        if after_first:
            until(lambda: self.there.redis.exists(out), timeout=120, every=0.0005)
            begin = time.perf_counter()
        until(lambda: self.there.redis.llen(out) >= messages, timeout=120, every=0.001)
        seconds = time.perf_counter() - begin
        ends = [(stage.redis.lindex(name, 0), stage.redis.lindex(name, -1)) for stage, name in self._copies(out)]
        assert ends[0] == ends[1], f"the seed's first and last are {ends[0]}, those that arrived {ends[1]}"
        until(lambda: self.here.blocked() >= waits)
        self.there.redis.unlink(out)
        until(lambda: self.there.redis.info("memory")["lazyfree_pending_objects"] == 0)
        return seconds

    def _copies(self, out: str) -> list[tuple[Stage, str]]:
        return [(self.here, SEED), (self.there, out)]


@contextmanager
def bare_client(here: Stage, there: Stage) -> Iterator[None]:
    """``bench.pipeline``, from ``SOURCE`` to ``OUT`` of the route ``BARE``."""
    ends = str(here.server.port), SOURCE + BARE, str(there.server.port), OUT + BARE
    with here.beside(*PYTHON, "bench.pipeline", *ends):
        yield


@contextmanager
def link(server: EmbeddedServer, round_trip: float) -> Iterator[int]:
    """Return the port at which ``server`` is that many seconds away."""
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
        return bool(Line(port).exchange(packed("PING"), 1))
    except OSError:
        return False


def bytes_a_second(port: int, round_trip: float, pieces: int = 64) -> float:
    """What a link lets through to the server behind it, in commands of 1 MiB that wait for nothing."""
    line = Line(port)
    begin = time.perf_counter()
    line.exchange(packed("SET", "bench:piece", b"x" * MIB) * pieces, pieces)
    return pieces * MIB / (time.perf_counter() - begin - round_trip)


def backlog(stage: Stage, rounds: int, messages: int) -> Figure:
    """Messages a second through the service, over those of a bare client with as many batches on the way, in turns."""
    stage.seed(messages, 32)
    with EmbeddedServer() as server:
        there = Stage(server)
        routes = Route(stage, there), Route(stage, there, BARE)
        with stage.vpush(there.url), bare_client(stage, there):
            pairs = [[route.seconds(messages) for route in routes] for _ in range(rounds + 1)][1:]
    ours, theirs = (messages / statistics.median(each) / 1000 for each in zip(*pairs, strict=True))
    name = f"{messages:,} x 32 B to another server, through the service / bare pipelining client"
    note = f"{ours:,.0f} k/s against {theirs:,.0f} k/s, from a backlog's appearance to the last message there"
    return Figure(name, "x", [bare / service for service, bare in pairs], 0.7, at_least=True, note=note)


def far(stage: Stage, rounds: int, messages: int) -> list[Figure]:
    """Messages a second at a distance over those to a server close by, in turns, and against RabbitMQ's shovel.

    A short backlog takes less time than half a round trip, which is lost whoever sends: its time is that from the first
    message's presence there to the last one's, near and far; a backlog ten times as long is timed from its appearance.
    """
    trips, longer = (0.05, 0.2), 10 * messages
    with EmbeddedServer() as server, ExitStack() as stack:
        there = Stage(server)
        ports = [server.port, *(stack.enter_context(link(server, trip)) for trip in trips)]
        passing = [bytes_a_second(port, trip) / 1e6 for port, trip in zip(ports[1:], trips, strict=True)]
        routes = [Route(stage, there, f":{place}") for place in range(len(ports))]
        for route, port in zip(routes, ports, strict=True):
            stack.enter_context(stage.vpush(f"redis://127.0.0.1:{port}/0", route.name))
        turns = {}
        for many, times in (messages, rounds), (longer, 3):
            stage.seed(many, 32)
            flows = many == messages
            turns[many] = [[route.seconds(many, flows) for route in routes] for _ in range(times + 1)][1:]
    found = [
        _by_distance(many, many == messages, trip, [(turn[0], turn[place]) for turn in turns[many]], least, speed)
        for many in turns
        for place, (trip, least, speed) in enumerate(zip(trips, (0.7, 0.5), passing, strict=True), start=1)
    ]
    name = f"{longer:,} x 32 B at 50 ms round trip, messages a second from their appearance here"
    note = f"four times RabbitMQ's shovel there: {SHOVEL:,}/s, as measured before on a machine of this kind"
    rates = [longer / turn[1] for turn in turns[longer]]
    return [*found, Figure(name, "/s", rates, 4 * SHOVEL, at_least=True, note=note)]


def _by_distance(
    messages: int, flows: bool, trip: float, pairs: list[tuple[float, float]], least: float, link_speed: float
) -> Figure:
    """``pairs``: seconds to the server close by, and to the one ``trip`` seconds away."""
    near, distant = (statistics.median(each) for each in zip(*pairs, strict=True))
    note = (
        f"{messages / distant / 1000:,.0f} k/s against {messages / near / 1000:,.0f} k/s; "
        f"the link passes {link_speed:,.0f} MB/s, "
        f"of which this needs {messages * SENT / distant / 1e6:,.0f}"
    )
    since = "from the first one there" if flows else "from their appearance here"
    name = f"{messages:,} x 32 B at {1000 * trip:.0f} ms round trip / at none, messages a second {since}"
    return Figure(name, "x", [close / away for close, away in pairs], least, at_least=True, note=note)


class Passage:
    """A publisher here and a reader there who waits already when a message is pushed; all is idle before."""

    def __init__(self, port: int, source: str, target_port: int, out: str) -> None:
        self._publisher, self._reader = Line(port), Line(target_port)
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
        """Of a PING to the target, in the same idleness."""
        time.sleep(0.003)
        begin = time.perf_counter()
        self._reader.exchange(packed("PING"), 1)
        return time.perf_counter() - begin


def one_at_a_time(stage: Stage, rounds: int, messages: int = 200) -> Figure:
    """What the way through the service adds to a push straight to the target, in round trips of that moment."""
    more, rows = [], []
    with EmbeddedServer() as server:
        there, ports = Stage(server), (stage.server.port, server.port)
        with stage.vpush(there.url), bare_client(stage, there):
            direct = Passage(ports[1], "bench:direct", ports[1], "bench:direct")
            service, client = (Passage(ports[0], SOURCE + name, ports[1], OUT + name) for name in ("", BARE))
            takes = service.seconds, direct.seconds, client.seconds, direct.round_trip
            for turn in range(rounds + 1):
                row = [statistics.median(take() for _ in range(messages)) * 1e6 for take in takes]
                if turn:
                    more.append((row[0] - row[1]) / row[3])
                    rows.append(row)
    ours, bare, forwarded, trip = (statistics.median(column) for column in zip(*rows, strict=True))
    note = (
        f"p50 {ours:.0f} us against {bare:.0f} us ({ours / bare:.1f} x), a PING {trip:.0f} us; "
        f"through a bare client that waits, pops and pushes: {forwarded:.0f} us"
    )
    name = "one message, idle, here to there, p50: more than LPUSH to the target"
    return Figure(name, "round trips", more, 2, note=note)


def memory(stage: Stage, waiting: int, few: int = 100_000) -> list[Figure]:
    """Resident memory of the process while much waits and is moved, after the target has gone, and by what waits."""
    peaks, left = [], []
    for messages in (few, waiting):
        stage.redis.flushall()
        with EmbeddedServer() as server:
            there = Stage(server)
            with stage.vpush(there.url) as vpush:
                _fill(stage, messages)
                moved = max(messages // 10, few)
                until(lambda there=there, moved=moved: there.redis.llen(OUT) >= moved, timeout=60)  # type: ignore[misc]
                peaks.append(peak_bytes(vpush.pid) / 1e6)
                server.kill()
                time.sleep(3)
                left.append(resident_bytes(vpush.pid) / 1e6)
    stage.redis.flushall()
    name = f"resident memory, {waiting:,} x 32 B waiting"
    note = f"the highest; with {few:,} waiting {peaks[0]:.1f} MB"
    return [
        Figure(f"{name}, {moved:,} of them moved", "MB", peaks[1:], 80, note=note),
        Figure(f"{name}, the target away", "MB", left[1:], 80, note=f"with {few:,} waiting {left[0]:.1f} MB"),
        Figure(f"{name} / {few:,}", "x", [peaks[1] / peaks[0]], 1.1),
    ]


def _fill(stage: Stage, messages: int) -> None:
    """Let that many messages appear in ``SOURCE`` at once."""
    portion = packed("LPUSH", "bench:backlog", *[b"x" * 32] * 1_000) * 100
    line = Line(stage.server.port)
    for _ in range(messages // 100_000):
        line.exchange(portion, 100)
    stage.redis.rename("bench:backlog", SOURCE)


def takeover(stage: Stage, rounds: int) -> list[Figure]:
    """Seconds from ``kill -9`` of the active one of two replicas to the next message there, while some are pushed."""
    seconds = []
    with EmbeddedServer() as server, ExitStack() as stack:
        there = Stage(server)
        replicas = [stack.enter_context(stage.replica(there.url)) for _ in range(2)]
        stack.enter_context(steady_publisher(stage))
        for turn in range(rounds):
            until(lambda: all(_id_of(stage, each.pid) for each in replicas))
            until(lambda: there.redis.llen(OUT))
            time.sleep(0.5 + 0.13 * turn)  # so that the lease is at another point of its life each time
            active = next(each for each in replicas if _id_of(stage, each.pid) == stage.redis.hget(KEYS.lease, "owner"))
            begin = time.perf_counter()
            active.kill()
            time.sleep(0.05)  # what it had sent is there now
            arrived = there.redis.llen(OUT)
            until(lambda arrived=arrived: there.redis.llen(OUT) > arrived, every=0.005)  # type: ignore[misc]
            seconds.append(time.perf_counter() - begin)
            active.start()
    name = "kill -9 of the active one of two replicas, under load, to the next message there"
    return [
        Figure(name, "s", seconds, 3, note="10,000 messages a second"),
        Figure(f"{name}, the longest of {rounds}", "s", [max(seconds)], 3),
    ]


def _id_of(stage: Stage, pid: int) -> bytes | None:
    """Return the id under which a process is registered."""
    redis: Any = stage.redis
    for id in redis.lrange(KEYS.ids, 0, -1):
        if redis.hget(f"{TRANSPORT}:{id.decode()}", "pid") == b"%d" % pid:
            return bytes(id)
    return None


@contextmanager
def steady_publisher(stage: Stage, portion: int = 100, every: float = 0.01) -> Iterator[None]:
    """Somebody who pushes ``portion`` messages to ``SOURCE`` every so many seconds."""
    done, redis = threading.Event(), Redis.from_url(stage.url)

    def publish() -> None:
        while not done.wait(every):
            redis.lpush(SOURCE, *[b"x" * 32] * portion)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        yield
    finally:
        done.set()
        publisher.join()
