"""The benchmark of peers: catalog, table, plot, rounds, and our own entries. No peer is installed here."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.peers import install, ours, rounds
from bench.peers.catalog import PEERS
from bench.peers.install import FromDebian, FromNpm, FromPyPI
from bench.peers.peer_run import Measure, PeerFailed, PeerRun
from bench.peers.programs import DRIVERS, Asking, Producing
from bench.peers.results import Member, Report, Row
from bench.peers.works import LIMIT, OURS, Entry, Peer, Work
from tests.support.harness import ROOT, until

MACHINE = {
    "date": "2026-11-21",
    "cores": "2",
    "system": "Linux",
    "Python": "3",
    "Node": "20",
    "server": "S",
    "load": "0",
}
SHARED = {"__init__.py", "orders.py", "orders.js", "penstock_jobs.py", "publisher.py", "worker.py"}
"""Of several peers; penstock_jobs.py is what `bench jobs` measures beside them."""


def row(peer: str, *samples: float, work: Work = Work.JOBS, missing: str = "") -> Row:
    return Row(peer, work, f"how {peer} runs", 20_000, samples, missing)


def report(*rows: Row) -> Report:
    return Report(MACHINE, 3, (Member("them", "1.2.3", "dances"),), rows)


THE_LIMIT, US, THEM = row(LIMIT, 1000, 3000, 2000), row(OURS, 500, 600, 1500), row("them", 100, 600, 300)
GONE = row("gone", missing="pip install: no\nnetwork | none")


def test_every_promised_peer_is_in_the_catalog_once() -> None:
    names = [peer.name for peer in PEERS]
    promised = {"busmq", "hfx-bus", "BullMQ", "dramatiq", "taskiq", "RQ", "Celery", "RabbitMQ", "NATS", LIMIT, OURS}
    assert promised <= set(names)
    assert len(names) == len({name.lower() for name in names})


def test_every_peer_that_is_installed_has_its_drivers_and_no_driver_is_left_over() -> None:
    started = set()
    for peer in PEERS:
        for entry in peer.works.values() if peer.origin else ():
            assert isinstance(entry.start, Producing | Asking)
            drivers = set().union(*map(_drivers, entry.start.programs))
            assert drivers, f"{peer.name} starts none of our drivers"
            started |= drivers
    assert all(path.exists() for path in started)
    assert {path.name for path in DRIVERS.iterdir() if path.is_file()} - {path.name for path in started} == SHARED


def _drivers(words: tuple[str, ...]) -> set[Path]:
    scripts = {Path(word).resolve() for word in words if word.endswith(".js")}
    names = re.findall(r"bench\.peers\.drivers\.\w+", " ".join(words))
    found = [importlib.util.find_spec(name) for name in names]
    return scripts | {Path(spec.origin) for spec in found if spec and spec.origin}


def test_versions_are_pinned_and_installed_peers_say_what_they_do_more() -> None:
    for peer in PEERS:
        assert bool(peer.more) or not peer.origin
        client = peer.origin.client if isinstance(peer.origin, FromDebian) else peer.origin
        if isinstance(client, FromPyPI):
            assert all(re.fullmatch(r"[\w\[\]-]+==[\d.]+", package) for package in client.packages)
        elif client:
            assert all(re.fullmatch(r"[\d.]+", version) for version in client.packages.values())
    busmq = next(peer.origin for peer in PEERS if peer.name == "busmq")
    assert isinstance(busmq, FromNpm)
    assert busmq.overrides == {"flexbuffer": "0.0.6"}


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    assert US.ratio_to(THE_LIMIT) == 0.5, "of 0.5, 0.2 and 0.75; the ratio of the medians is 0.3"
    assert GONE.ratio_to(THE_LIMIT) is None
    assert report(US).ratio(US, LIMIT) is None


def _peer(name: str, *said: float | Exception, log: list[str]) -> Peer:
    """Return a peer that measures these figures, warm-ups included, or raises."""
    figures = iter(said)

    @contextmanager
    def opened(_: PeerRun) -> Iterator[Measure]:
        def measure(messages: int) -> float:
            log.append(f"{name} {messages}")
            figure = next(figures)
            if isinstance(figure, Exception):
                raise figure
            return figure

        yield measure

    return Peer(name, {Work.JOBS: Entry(opened, 100, "so")})


def test_peers_take_turns_and_the_warm_up_does_not_count() -> None:
    log: list[str] = []
    peers = [_peer("a", 1, 2, 3, 4, log=log), _peer("b", 5, 6, 7, 8, log=log)]
    rows = rounds.measured(peers, [Work.JOBS], {"a": None, "b": None}, 2, lambda *_: None)
    assert [each.samples for each in rows] == [(2, 4), (6, 8)]
    assert log == ["a 10", "a 100", "b 10", "b 100"] * 2


def test_a_peer_that_fails_is_shown_with_the_reason_and_not_tried_again() -> None:
    log: list[str] = []
    peers = [_peer("a", 1, 2, PeerFailed("ended with status 9"), log=log), _peer("b", *range(6), log=log)]
    rows = rounds.measured(peers, [Work.JOBS], {"a": None, "b": None}, 3, lambda *_: None)
    assert (rows[0].samples, rows[0].missing) == ((), "round 2: ended with status 9")
    assert len(rows[1].samples) == 3
    assert log.count("a 10") == 2


def test_a_peer_that_cannot_be_installed_is_shown_with_the_reason_and_the_others_run() -> None:
    absent = Peer("absent", {}, FromDebian("none-such", Path("/nowhere/none-such"), FromPyPI(("x==1",))))
    messages: list[str] = []
    found = rounds.installed([absent, _peer("b", log=[])], lambda what, _: messages.append(what))
    reason = "Debian's package none-such is not installed"
    assert found == {"absent": reason, "b": None}
    assert messages == [f"absent: {reason}", "b: ready"]
    missing = Peer("absent", _peer("x", log=[]).works)
    (missing_row,) = rounds.measured([missing], [Work.JOBS], {"absent": reason}, 1, lambda *_: None)
    assert missing_row.missing == reason


def test_an_installation_is_repeated_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(install, "_run", lambda *command: ran.append(command[-1]))
    monkeypatch.setattr("shutil.which", lambda program: program)
    for version in ("1.0", "1.0", "2.0"):
        installed = FromNpm({"x": version}).into(tmp_path / "x")
        assert (installed.version, installed.environment) == (version, {"NODE_PATH": str(tmp_path / "x/node_modules")})
    assert len(ran) == 2


def _producer(run: PeerRun, code: str, *, piped: bool = False) -> "subprocess.Popen[str]":
    return run.start(sys.executable, "-c", f"import os, sys, time\n{code}", piped=piped)


def test_a_flow_is_measured_from_the_order_to_the_last_mark() -> None:
    code = """
for order in sys.stdin:
    time.sleep(0.05)
    open(os.environ["BENCH_MARKS"], "a").write("." * int(order))
"""
    with PeerRun.opened(None) as run:
        measure = run.throughput(_producer(run, code))
        assert 10 < measure(100) < 2000
        assert run.marks() == 100
        measure(20)
        assert run.marks() == 120


@pytest.mark.parametrize("piped", [True, False])
def test_a_program_that_dies_is_reported_with_its_last_output(piped: bool) -> None:
    with PeerRun.opened(None) as run:
        dying = _producer(run, "sys.stdin.readline(); raise ValueError('out of paper')", piped=piped)
        measure = (run.latency if piped else run.throughput)(dying)
        with pytest.raises(PeerFailed, match=r"status 1: ValueError: out of paper"):
            measure(10)


def test_nothing_that_was_started_outlives_its_run() -> None:
    code = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    with PeerRun.opened(None) as run:
        parent = _producer(run, code, piped=True)
        assert parent.stdout
        child = int(parent.stdout.readline())
        directory = run.directory
    assert parent.poll() is not None
    until(lambda: not _lives(child))
    assert not directory.exists()


def _lives(pid: int) -> bool:
    """Return True if ``pid`` runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


OUR_WORKS = [
    pytest.param(entry, id=f"{peer.name}, {work}")
    for peer in (ours.BARE, ours.PENSTOCK, ours.ONE_BY_ONE, ours.LOOP, ours.STREAM)
    for work, entry in peer.works.items()
]


@pytest.mark.slow
@pytest.mark.parametrize("entry", OUR_WORKS)
def test_ours_and_the_bare_clients_do_their_work(entry: Entry) -> None:
    with PeerRun.opened(None) as run, entry.start(run) as measure:
        assert measure(20) > 0
        assert measure(min(1_200, entry.messages // 10)) > 0


def test_a_wrong_call_ends_with_status_2_and_installs_nothing() -> None:
    command = [sys.executable, "-m", "bench", "peers", "--peer", "nobody"]
    environment = os.environ | {"COLUMNS": "300", "TERM": "dumb"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=60)
    assert done.returncode == 2
    assert all(peer.name in done.stderr for peer in PEERS)
