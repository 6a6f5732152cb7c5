"""One seed: the chain under load and under faults for some seconds, then calm, then the accounting."""

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
from tests.reliability.soak.account import Account, Pushed, read
from tests.reliability.soak.chain import HERE, IN, LEGS, SERVICES, WORK, Chain, Place
from tests.reliability.soak.faults import FaultContext, drawn, inject
from tests.reliability.soak.payloads import payloads

MODULES: Final = ("common.app", "redis", *(f"services.{name}.service" for name in SERVICES))
"""What a fork server imports."""
PAUSE: Final = 0.9
"""Seconds between two faults, on an average."""
CROWDED: Final = {IN: 3_000, LEGS[0]: 3_000, LEGS[1]: 1_000, WORK: 200}
"""Messages in a list at which no more are pushed for a while."""
CALM: Final = 240.0
"""Seconds in which all that is on its way must have ended."""
Tell = Callable[[str], None]


@dataclass
class Result:
    """``waiting`` are lists that still hold messages after ``CALM``; ``statuses`` how processes ended by name."""

    seed: int
    account: Account
    seconds: float
    faults: dict[str, int]
    waiting: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, dict[int, int]] = field(default_factory=dict)
    stops: dict[str, int | None] = field(default_factory=dict)
    """The status of every process that did not end with 0 when it was stopped last."""
    reasons: list[str] = field(default_factory=list)
    """The last words of processes that ended by themselves with a status above 0: harm that a restart mends."""

    @property
    def holds(self) -> bool:
        return self.account.holds and not self.waiting and not self.stops


class Publisher:
    """Pushes messages of one seed in batches of all sizes until its block ends."""

    def __init__(self, chain: Chain, rng: random.Random) -> None:
        self.pushed, self._rng = Pushed(), rng
        self._chain, self._messages = chain, payloads(rng)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def _publish(self) -> None:
        with self._chain.asking(HERE) as redis:
            while not self._ended.is_set():
                batch = [next(self._messages) for _ in range(self._rng.choice((1, 1, 2, 5, 30)))]
                try:
                    redis.lpush(IN, *batch)
                    self.pushed.accepted += batch
                    crowded = any(redis.llen(name) > most for name, most in CROWDED.items())
                except ResponseError:
                    crowded = False  # nothing of a refused batch is there
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
    tell: Tell = lambda _: None,
    stop: threading.Event | None = None,
) -> Result:
    """Run the chain and return what came of it.

    ``sabotage`` happens once, amid the load, and ``loses`` makes the worker a broken one: both must be found. If the
    seed fails, the logs of all processes are kept below ``logs``. ``stop`` ends it early, all mended and nothing left.
    """
    began, rng, happened = time.monotonic(), random.Random(seed), Counter[str]()
    stop = stop or threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-soak-") as directory,
        Chain(fork_server, Path(directory), plain=rng.random() < 0.5, loses=loses) as chain,
    ):
        with Publisher(chain, random.Random(rng.random())) as pushed:
            if faults:
                _break(
                    chain, rng, began + seconds, happened, partial(_say, tell, began, seconds, pushed, happened), stop
                )
            else:
                stop.wait(seconds / 2)
                if sabotage:
                    sabotage(chain)
                stop.wait(seconds / 2)
        tell(f"{len(pushed.accepted):,} pushed; waiting for all to end")
        waiting = _settled(chain, stop)
        with ThreadPoolExecutor(len(chain.places)) as pool:
            statuses = [*zip(chain.places, pool.map(Place.stop, chain.places), strict=True)]
        ended = {place.name: Counter[int]() for place in chain.places}
        for place, _ in statuses:
            ended[place.name] += place.statuses
        found = read(chain, pushed)
        bad = {f"{place.name}": status for place, status in statuses if status != 0}
        counts = {name: dict(count) for name, count in ended.items()}
        reasons = [f"{place.name}: {reason}" for place, _ in statuses for reason in place.reasons]
        result = Result(seed, found, time.monotonic() - began, dict(happened), waiting, counts, bad, reasons)
        if logs and not result.holds:
            _keep(chain, logs / f"penstock-soak-failed-{seed}")
    return result


def _break(
    chain: Chain,
    rng: random.Random,
    until: float,
    happened: Counter[str],
    tell: Callable[[], None],
    stop: threading.Event,
) -> None:
    """Begin one fault after the other, whether the ones before are over or not; return when all are mended."""
    going: list[threading.Thread] = []
    while (left := until - time.monotonic()) > 0 and not stop.is_set():
        name = drawn(rng)
        context = FaultContext(chain, random.Random(rng.random()), left, stop)
        happened[name] += 1
        going.append(threading.Thread(target=inject, args=(name, context), daemon=True))
        going[-1].start()
        tell()
        stop.wait(min(rng.expovariate(1 / PAUSE), max(left, 0)))
    for thread in going:
        thread.join(120)
        assert not thread.is_alive(), "a fault is not mended"


def _settled(chain: Chain, stop: threading.Event) -> dict[str, int]:
    """Wait until nothing is on its way, twice in a row; return what still is when patience ends."""
    end, empty, waiting = time.monotonic() + CALM, 0, dict[str, int]()
    while time.monotonic() < end and not stop.is_set():
        try:
            chain.forget_the_dead()
            waiting = chain.waiting()
        except RedisError:
            waiting = {"a server": 1}
        empty = 0 if waiting else empty + 1
        if empty == 3:
            return {}
        stop.wait(0.5)
    return waiting


def _say(tell: Tell, began: float, seconds: float, pushed: Pushed, happened: Counter[str]) -> None:
    gone = time.monotonic() - began
    tell(f"{gone:.0f} of {seconds:.0f} s, {len(pushed.accepted):,} pushed, {happened.total()} faults")


def _keep(chain: Chain, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    for number, place in enumerate(chain.places):
        (directory / f"{place.name}-{number}.log").write_text(place.log_text())


def worst(results: Sequence[Result]) -> int:
    """Return the exit status for all of them."""
    return int(not all(result.holds for result in results))
