"""Run of one seed: the chain under load and faults, then without faults until it settles, then the accounting."""

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from redis.exceptions import RedisError, ResponseError

from penstock.testing.forkserver import ForkServer
from tests.reliability.soak.account import Account, Pushed, read_account
from tests.reliability.soak.chain import BRANCHES, HERE, IN, SERVICES, WORK, Chain, ManagedProcess
from tests.reliability.soak.faults import FaultContext, draw_fault, inject
from tests.reliability.soak.payloads import payloads

MODULES: Final = ("common.app", "redis", *(f"services.{name}.service" for name in SERVICES))
"""Modules that the fork server imports."""
MEAN_INTERVAL: Final = 0.9
"""Mean seconds between two faults."""
MAX_WAITING: Final = {IN: 3_000, BRANCHES[0]: 3_000, BRANCHES[1]: 1_000, WORK: 200}
"""Length of a list above which pushing slows down."""
SETTLE_SECONDS: Final = 240.0
"""Maximum seconds until nothing is in flight once the faults are over."""
Report = Callable[[str], None]


@dataclass
class Result:
    """Result of a seed: ``waiting`` lists that are not empty at the end; ``statuses``: exit statuses by name."""

    seed: int
    account: Account
    seconds: float
    faults: dict[str, int]
    waiting: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, dict[int, int]] = field(default_factory=dict)
    stops: dict[str, int | None] = field(default_factory=dict)
    """The status of every process that did not end with 0 at the final stop."""
    reasons: list[str] = field(default_factory=list)
    """Last log lines of processes that ended with a status above 0: errors that a restart repairs."""

    @property
    def holds(self) -> bool:
        return self.account.holds and not self.waiting and not self.stops


class Publisher:
    """Push messages of one seed in batches of various sizes until the block ends."""

    def __init__(self, chain: Chain, rng: random.Random) -> None:
        self.pushed, self._rng = Pushed(), rng
        self._chain, self._messages = chain, payloads(rng)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def _publish(self) -> None:
        with self._chain.connected(HERE) as redis:
            while not self._ended.is_set():
                batch = [next(self._messages) for _ in range(self._rng.choice((1, 1, 2, 5, 30)))]
                try:
                    redis.lpush(IN, *batch)
                    self.pushed.accepted += batch
                    crowded = any(redis.llen(name) > most for name, most in MAX_WAITING.items())
                except ResponseError:
                    crowded = False  # a refused batch is refused as a whole
                except RedisError:
                    if self.pushed.accepted[-len(batch) :] != batch:
                        self.pushed.unsure += batch
                    crowded = False
                self._ended.wait(0.3 if crowded else self._rng.random() * 0.06)

    def __enter__(self) -> Pushed:
        self._thread.start()
        return self.pushed

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def run_seed(
    fork_server: ForkServer,
    seed: int,
    seconds: float,
    *,
    faults: bool = True,
    sabotage: Callable[[Chain], None] | None = None,
    loses: int = 0,
    logs: Path | None = None,
    report: Report = lambda _: None,
    stop: threading.Event | None = None,
) -> Result:
    """Run the chain and return the result.

    ``sabotage`` is called once under load, and ``loses`` breaks the worker: the accounting must find both. If the seed
    fails, keep the logs of all processes below ``logs``. ``stop`` ends it early, with all faults repaired.
    """
    began, rng, fault_counts = time.monotonic(), random.Random(seed), Counter[str]()
    stop = stop or threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-soak-") as directory,
        Chain(fork_server, Path(directory), plain=rng.random() < 0.5, loses=loses) as chain,
    ):
        with Publisher(chain, random.Random(rng.random())) as pushed:
            if faults:
                show = partial(_show, report, began, seconds, pushed, fault_counts)
                _inject_faults(chain, rng, began + seconds, fault_counts, show, stop)
            else:
                stop.wait(seconds / 2)
                if sabotage:
                    sabotage(chain)
                stop.wait(seconds / 2)
        report(f"{len(pushed.accepted):,} pushed; waiting for all to end")
        waiting = _settled(chain, stop)
        with ThreadPoolExecutor(len(chain.processes)) as pool:
            statuses = [*zip(chain.processes, pool.map(ManagedProcess.stop, chain.processes), strict=True)]
        ended = {process.name: Counter[int]() for process in chain.processes}
        for process, _ in statuses:
            ended[process.name] += process.statuses
        found = read_account(chain, pushed)
        bad = {f"{process.name}": status for process, status in statuses if status != 0}
        counts = {name: dict(count) for name, count in ended.items()}
        reasons = [f"{process.name}: {reason}" for process, _ in statuses for reason in process.reasons]
        result = Result(seed, found, time.monotonic() - began, dict(fault_counts), waiting, counts, bad, reasons)
        if logs and not result.holds:
            _keep_logs(chain, logs / f"penstock-soak-failed-{seed}")
    return result


def _inject_faults(
    chain: Chain,
    rng: random.Random,
    until: float,
    fault_counts: Counter[str],
    report: Callable[[], None],
    stop: threading.Event,
) -> None:
    """Start one fault after the other, even if earlier ones are still active; return when all are repaired."""
    threads: list[threading.Thread] = []
    while (left := until - time.monotonic()) > 0 and not stop.is_set():
        name = draw_fault(rng)
        context = FaultContext(chain, random.Random(rng.random()), left, stop)
        fault_counts[name] += 1
        threads.append(threading.Thread(target=inject, args=(name, context), daemon=True))
        threads[-1].start()
        report()
        stop.wait(min(rng.expovariate(1 / MEAN_INTERVAL), max(left, 0)))
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a fault is not mended"


def _settled(chain: Chain, stop: threading.Event) -> dict[str, int]:
    """Wait until nothing is in flight, three times in a row; return what still is after ``SETTLE_SECONDS``."""
    end, empty, waiting = time.monotonic() + SETTLE_SECONDS, 0, dict[str, int]()
    while time.monotonic() < end and not stop.is_set():
        try:
            chain.deregister_dead()
            waiting = chain.waiting()
        except RedisError:
            waiting = {"a server": 1}
        empty = 0 if waiting else empty + 1
        if empty == 3:
            return {}
        stop.wait(0.5)
    return waiting


def _show(report: Report, began: float, seconds: float, pushed: Pushed, fault_counts: Counter[str]) -> None:
    gone = time.monotonic() - began
    report(f"{gone:.0f} of {seconds:.0f} s, {len(pushed.accepted):,} pushed, {fault_counts.total()} faults")


def _keep_logs(chain: Chain, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for number, process in enumerate(chain.processes):
        (directory / f"{process.name}-{number}.log").write_text(process.log_text())


def exit_status(results: Sequence[Result]) -> int:
    """Return the exit status: 0 if all seeds hold, otherwise 1."""
    return int(not all(result.holds for result in results))
