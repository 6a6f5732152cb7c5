"""Penstock at each work, and the limit: bare clients that do the minimum that counts as the work."""

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen
from typing import Final

from bench import replies
from bench.peers.peer_run import Measure, PeerRun
from bench.peers.works import LIMIT, OURS, Entry, Peer, Work
from bench.testbed import NAMESPACE, OUT, PYTHON, SOURCE, TRACKED, Testbed, subscribers
from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer

DRIVERS: Final = "bench.peers.drivers"
DONE: Final = Keys(TRACKED).done


@contextmanager
def fan_out(run: PeerRun) -> Iterator[Measure]:
    with _testbed() as bed, bed.mpush(2):
        yield _published(run, bed, SOURCE)


@contextmanager
def fan_out_by_a_loop(run: PeerRun) -> Iterator[Measure]:
    pending = f"{NAMESPACE}:pending"
    with _testbed() as bed, bed.run_process(*PYTHON, "bench.reference", bed.url, SOURCE, pending, *subscribers(2)):
        yield _published(run, bed, SOURCE)


@contextmanager
def fan_out_by_the_publisher(run: PeerRun) -> Iterator[Measure]:
    with _testbed() as bed:
        yield _published(run, bed, *subscribers(2))


def _published(run: PeerRun, bed: Testbed, *lists: str) -> Measure:
    return run.throughput(_publisher(run, bed, "lists", *lists), lambda: bed.redis.llen(subscribers(2)[-1]))


@contextmanager
def fan_out_by_a_stream(run: PeerRun) -> Iterator[Measure]:
    with _testbed() as bed:
        yield run.throughput(_publisher(run, bed, "stream", OUT), lambda: bed.redis.xlen(OUT))


@contextmanager
def jobs(run: PeerRun) -> Iterator[Measure]:
    with _tracked(run, "bench.worker", OUT, DONE, "done") as measure:
        yield measure


@contextmanager
def jobs_one_by_one(run: PeerRun) -> Iterator[Measure]:
    with _tracked(run, f"{DRIVERS}.worker", "one", OUT, DONE) as measure:
        yield measure


@contextmanager
def _tracked(run: PeerRun, worker: str, *words: str) -> Iterator[Measure]:
    """Measure jobs that mdispatch registers and a monitor counts as done."""
    done = Keys(TRACKED).metric("done")
    with _testbed() as bed, bed.tracking(), bed.monitor():
        run.start(*PYTHON, worker, str(bed.server.port), *words)
        publisher = _publisher(run, bed, "lists", SOURCE)
        yield run.throughput(publisher, lambda: int(bed.redis.hget(done, "count") or 0))


@contextmanager
def jobs_of_one_list(run: PeerRun) -> Iterator[Measure]:
    with _testbed() as bed:
        run.start(*PYTHON, f"{DRIVERS}.worker", str(bed.server.port), "least", SOURCE, DONE)
        publisher = _publisher(run, bed, "lists", SOURCE)
        yield run.throughput(publisher, lambda: int(bed.redis.hget(DONE, "count") or 0))


@contextmanager
def answered(run: PeerRun) -> Iterator[Measure]:
    with _testbed() as bed, replies.through_mdispatch(bed) as ask:
        yield lambda requests: 1000 * ask(requests, 1)["p50"]


@contextmanager
def answered_by_bare_moves(run: PeerRun) -> Iterator[Measure]:
    with _testbed() as bed, replies.through_bare_moves(bed) as ask:
        yield lambda requests: 1000 * ask(requests, 1)["p50"]


@contextmanager
def _testbed() -> Iterator[Testbed]:
    with EmbeddedServer() as server:
        yield Testbed(server)


def _publisher(run: PeerRun, bed: Testbed, *words: str) -> Popen[str]:
    return run.start(*PYTHON, f"{DRIVERS}.publisher", str(bed.server.port), *words)


BARE: Final = Peer(
    LIMIT,
    {
        Work.FAN_OUT: Entry(fan_out_by_the_publisher, 500_000, "the publisher pushes to both lists, 500 a command"),
        Work.JOBS: Entry(jobs_of_one_list, 500_000, "one list; 500 looked at, then removed and counted in one MULTI"),
        Work.REPLIES: Entry(answered_by_bare_moves, 300, "two bare forwarders, one each way; no record, no matching"),
    },
)
PENSTOCK: Final = Peer(
    OURS,
    {
        Work.FAN_OUT: Entry(fan_out, 500_000, "mpush; the publisher pushes 500 a command"),
        Work.JOBS: Entry(jobs, 30_000, "mdispatch, a monitor; the worker takes up to 500 at a time"),
        Work.REPLIES: Entry(answered, 300, "mdispatch and a monitor"),
    },
)
ONE_BY_ONE: Final = Peer(
    f"{OURS}, job by job",
    {Work.JOBS: Entry(jobs_one_by_one, 10_000, "the same, with a worker that takes one and says done, then the next")},
)
LOOP: Final = Peer(
    "a loop with redis-py",
    {
        Work.FAN_OUT: Entry(
            fan_out_by_a_loop, 5_000, "BLMOVE to a pending list, then one MULTI a message, as many do it"
        )
    },
)
STREAM: Final = Peer(
    "Redis Streams",
    {
        Work.FAN_OUT: Entry(
            fan_out_by_a_stream, 200_000, "XADD, pipelined; groups of consumers would read the one stream"
        )
    },
    more="every group reads the same entries, so nothing is copied; what was read can be read again",
)
