"""What is measured of jobs."""

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.connection import Connection, packed
from bench.figures import KIB, MIB, Figure, commands_a_second
from bench.jobs.stream_moves import p50
from bench.peers.brokers import redis
from bench.peers.catalog import PEERS
from bench.peers.install import FromNpm, Installed, NotInstalled
from bench.peers.peer_run import Measure, PeerRun
from bench.peers.programs import module
from bench.peers.rounds import installed
from bench.peers.works import OURS, StartWork, Work
from bench.pinger import pinging
from bench.testbed import PYTHON, Testbed, resident_bytes
from tests.support.harness import ROOT, Service, until

HFXBUS: Final = FromNpm({"hfxbus": "2.2.0"}, {"flexbuffer": "0.0.6"})
WAITING: Final = 1_000_000
DELAYED: Final = 10_000
KEYS: Final = 1_000
FLAT: Final = 1.3
PYTHON_PEERS: Final = ("taskiq", "dramatiq", "Celery", "RQ")
Order = Callable[[str], dict[str, float]]


@contextmanager
def program(*command: str, **environment: str) -> Iterator[Order]:
    """Start a program that reads orders and prints JSON; yield what gives it one and waits."""
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:

        def order(line: str) -> dict[str, float]:
            assert process.stdin
            assert process.stdout
            print(line, file=process.stdin, flush=True)
            found: dict[str, float] = json.loads(process.stdout.readline())
            return found

        try:
            yield order
        finally:
            process.kill()


@contextmanager
def ours(bed: Testbed) -> Iterator[Order]:
    """Start penstock.jobs."""
    with program(*PYTHON, "bench.jobs.ours", bed.url) as order:
        yield order


@contextmanager
def theirs(bed: Testbed) -> Iterator[Order | str]:
    """Start hfxbus, or yield why that cannot be."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        try:
            installed = HFXBUS.into(Path(directory))
        except NotInstalled as reason:
            yield str(reason)
            return
        script = str(Path(__file__).parent / "hfx.js")
        with program(*installed.command, script, str(bed.server.port), **installed.environment) as order:
            yield order


def beside_hfxbus(bed: Testbed, rounds: int, count: int) -> list[Figure]:
    """Measure producing, consuming and asking, in turns with hfxbus."""
    names = {
        "produce 32": "jobs produced with 32 B, one process, a second / hfxbus's",
        "consume 32": "jobs consumed with 32 B, one process, concurrency 100, a second / hfxbus's",
        f"consume {KIB}": "jobs consumed with 1 KiB, one process, concurrency 100, a second / hfxbus's",
        "ask": "request and answer, 100 in flight, a second / hfxbus's",
    }
    with ours(bed) as us, theirs(bed) as them:
        if isinstance(them, str):
            return [Figure(name, "x", [], 1.5, at_least=True, missing=them) for name in names.values()]
        pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        us("answer asked:ours")
        them("answer asked:theirs")
        for turn in range(rounds + 1):
            for size in (32, KIB):
                times = []
                for who, order in (("ours", us), ("theirs", them)):
                    stream = f"bench:{who}"
                    produced = order(f"produce {stream} {count} {size}")["seconds"]
                    times.append((produced, order(f"consume {stream} {count}")["seconds"]))
                    bed.redis.unlink(f"hfxbus:str:{stream}")
                if turn:
                    if size == 32:
                        pairs["produce 32"].append((times[0][0], times[1][0]))
                    pairs[f"consume {size}"].append((times[0][1], times[1][1]))
            asked = [
                order(f"ask asked:{who} {count // 5} 100")["seconds"] for who, order in (("ours", us), ("theirs", them))
            ]
            if turn:
                pairs["ask"].append((asked[0], asked[1]))
    found = []
    for name, label in names.items():
        many = count // 5 if name == "ask" else count
        mine, other = (many / statistics.median(each) for each in zip(*pairs[name], strict=True))
        note = f"{mine:,.0f} /s against {other:,.0f} /s"
        found.append(Figure(label, "x", [two / one for one, two in pairs[name]], 1.5, at_least=True, note=note))
    return found


@contextmanager
def work_of_ours(run: PeerRun) -> Iterator[Measure]:
    """Have penstock.jobs do what its peers do: one process sends, another one does."""
    driver, environment = (*PYTHON, module("penstock_jobs")), {"BENCH_URL": redis(run)}
    run.start(*driver, "work", environment=environment)
    yield run.throughput(run.start(*driver, "produce", environment=environment, piped=False))


def beside_peers(rounds: int, count: int, among: str, names: Collection[str], limit: float) -> Figure:
    """Measure jobs through both processes in turns with the peers of these names; the ratio is to the fastest."""
    name = f"jobs sent and done, one process each, a second / {among}"
    peers = [peer for peer in PEERS if peer.name in names]
    found = {name: how for name, how in installed(peers, lambda *_: None).items() if not isinstance(how, str)}
    peers = [peer for peer in peers if peer.name in found]
    if not peers:
        return Figure(name, "x", [], limit, at_least=True, missing="no peer could be installed")
    rates: dict[str, list[float]] = {each: [] for each in (OURS, *(peer.name for peer in peers))}
    for _ in range(rounds):
        rates[OURS].append(_rate(None, work_of_ours, count))
        for peer in peers:
            entry = peer.works[Work.JOBS]
            rates[peer.name].append(_rate(found[peer.name], entry.start, entry.messages))
    note = ", ".join(f"{name} {statistics.median(each):,.0f} /s" for name, each in rates.items())
    ratios = [one / max(others) for one, *others in zip(*rates.values(), strict=True)]
    return Figure(name, "x", ratios, limit, at_least=True, note=note)


def _rate(how: Installed | None, start: StartWork, count: int) -> float:
    with PeerRun.opened(how) as run, start(run) as measure:
        measure(count // 10)
        return measure(count)


def one_at_a_time(bed: Testbed, rounds: int, requests: int) -> Figure:
    """Measure one request at a time beside two bare moves of streams."""
    command = (*PYTHON, "bench.jobs.stream_moves", str(bed.server.port), "bare:asked", "bare:answered")
    pairs = []
    with ours(bed) as us, ours(bed) as worker, bed.run_process(*command):
        worker("answer asked")
        for turn in range(rounds + 1):
            mine = us(f"ask asked {requests} 1")["p50"]
            bare = p50(bed.server.port, "bare:asked", "bare:answered", requests)
            if turn:
                pairs.append((mine, bare))
    one, other = (statistics.median(each) * 1e6 for each in zip(*pairs, strict=True))
    name = "request and answer, one at a time, p50 / two bare moves of streams"
    return Figure(name, "x", [a / b for a, b in pairs], 1.5, note=f"{one:,.0f} us against {other:,.0f} us")


def growth(bed: Testbed, rounds: int, count: int, waiting: int) -> list[Figure]:
    """Measure what a job costs beside many that wait, that are delayed, and with many keys."""
    connection = Connection(bed.server.port)
    add = packed("XADD", "hfxbus:str:long", "*", "prd", "p", "job", "shared")
    for _ in range(0, waiting, 10_000):
        connection.exchange(add * 10_000, 10_000)
    bed.redis.set("hfxbus:job:shared:in", "x" * 32)
    later = int(time.time()) + 86_400
    ratios: dict[str, list[float]] = {"waiting": [], "delayed": [], "keys": []}
    with ours(bed) as us:
        for turn in range(rounds + 1):
            for _ in range(0, count, 10_000):
                connection.exchange(add.replace(b"hfxbus:str:long", b"hfxbus:str:shrt") * 10_000, 10_000)
            short = us(f"consume shrt {count}")["seconds"]
            long = us(f"consume long {count}")["seconds"]
            bed.redis.unlink("hfxbus:str:shrt")
            alone = _both(us, "none", count)
            bed.redis.unlink("hfxbus:str:none")
            members = {f"t{number} []": later for number in range(DELAYED)}
            bed.redis.zadd("hfxbus:later:some", members)
            beside = _both(us, "some", count)
            bed.redis.unlink("hfxbus:str:some", "hfxbus:later:some")
            one_key = us(f"limited one {count} 1")["seconds"]
            many_keys = us(f"limited many {count} {KEYS}")["seconds"]
            bed.redis.unlink("hfxbus:str:one", "hfxbus:str:many")
            if turn:
                ratios["waiting"].append(long / short)
                ratios["delayed"].append(beside / alone)
                ratios["keys"].append(many_keys / one_key)
    names = {
        "waiting": f"cost of a job with {waiting:,} waiting / with none",
        "delayed": f"cost of a job with {DELAYED:,} delayed / with none",
        "keys": f"cost of a job under a limit of {KEYS:,} keys / of one key",
    }
    return [Figure(names[name], "x", found, FLAT) for name, found in ratios.items()]


def _both(order: Order, stream: str, count: int) -> float:
    """Return the seconds for sending and doing jobs."""
    return order(f"produce {stream} {count} 32")["seconds"] + order(f"consume {stream} {count}")["seconds"]


def large(bed: Testbed, rounds: int, total: int) -> list[Figure]:
    """Measure large values beside a bare client with the same commands, and the longest PING."""
    found, pings = [], []
    with ours(bed) as us, pinging(bed.server.port) as pinger:
        for size, label in ((100 * KIB, "100 KB"), (MIB, "1 MB")):
            count = max(16, total // size // 16 * 16)
            ratios, longest, rates = [], [], []
            for turn in range(rounds + 1):
                pinger.begin()
                mine = us(f"large l{turn}:{size} {count} {size}")["seconds"]
                ping = pinger.longest()
                bare = us(f"bare b{turn}:{size} {count} {size}")["seconds"]
                bed.redis.flushall()
                if turn:
                    ratios.append(bare / mine)
                    longest.append(ping * 1000)
                    rates.append(count * size / mine / 1e6)
            note = f"{statistics.median(rates):,.0f} MB/s"
            name = f"jobs with {label}, sent and done / a bare client with the same commands"
            found.append(Figure(name, "x", ratios, 0.6, at_least=True, note=note))
            pings.append(Figure(f"longest PING of the server, jobs with {label}", "ms", longest, 50))
    return found + pings


def idle(bed: Testbed, seconds: int) -> list[Figure]:
    """Measure a worker without jobs."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        (folder / "idle_app.py").write_text(
            'from penstock.jobs import Consumer\nconsumer = Consumer("idle")\n\n\n'
            '@consumer.job("nothing")\nasync def work(job): ...\n'
        )
        worker = Service("worker", bed.log, redis=bed.url, redis_namespace="bench:worker", app="idle_app:consumer")
        worker.folder = folder
        worker._environment["PYTHONPATH"] = f"{ROOT}:{folder}"
        with worker:
            until(lambda: bed.redis.exists("hfxbus:str:nothing"))
            time.sleep(2)
            commands, memory = commands_a_second(bed, seconds), resident_bytes(worker.pid) / 1e6
            worker.stop()
    return [
        Figure("worker, idle: commands a second, those inside scripts included", "/s", [commands], 3),
        Figure("worker, idle: resident memory", "MB", [memory], 60),
    ]


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of jobs."""
    rounds, count = (3, 10_000) if quick else (7, 50_000)
    return [
        lambda bed: beside_hfxbus(bed, rounds, count),
        lambda _: beside_peers(min(rounds, 3), count // 2, "the fastest peer in Python", PYTHON_PEERS, 8),
        lambda _: beside_peers(rounds, count // 2, "NATS JetStream", {"NATS"}, 1.5),
        lambda bed: one_at_a_time(bed, rounds, 200 if quick else 1_000),
        lambda bed: growth(bed, rounds, 10_000 if quick else 20_000, WAITING // 10 if quick else WAITING),
        lambda bed: large(bed, rounds, (50 if quick else 200) * MIB),
        lambda bed: idle(bed, 10 if quick else 60),
    ]
