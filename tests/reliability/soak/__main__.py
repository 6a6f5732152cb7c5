"""``python -m tests.reliability.soak``: run many seeds, show progress, and print a table of results."""

import argparse
import json
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Event, Lock

from penstock.testing.forkserver import ForkServer
from tests.reliability.soak.seed import MODULES, Result, exit_status, run_seed

COLUMNS = (
    "seed",
    "accepted",
    "unsure",
    "lost",
    "doubled",
    "disordered",
    "gone",
    "dead",
    "again",
    "faults",
    "seconds",
)


class Progress:
    """Show progress in one line on a terminal, otherwise one line per seed."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0
        self._states: dict[int, str] = {}
        self._lock = Lock()

    def report(self, seed: int, state: str) -> None:
        with self._lock:
            self._states[seed] = state
            if sys.stderr.isatty():
                all = "; ".join(f"seed {seed}: {state}" for seed, state in sorted(self._states.items()))
                print(f"\r\033[K{self._done}/{self._total} seeds. {all}"[:160], end="", file=sys.stderr, flush=True)

    def ended(self, result: Result) -> None:
        with self._lock:
            self._done += 1
            self._states.pop(result.seed, None)
            lead = "\r\033[K" if sys.stderr.isatty() else ""
            print(f"{lead}{self._done}/{self._total} seeds. {line(result)}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description="Run a chain of all services under every fault, by seed.")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="number of seeds (10)")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="first seed (1)")
    parser.add_argument("--seconds", type=float, default=180, metavar="S", help="seconds of faults for each seed (180)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="seeds to run at a time (1)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    progress = Progress(len(seeds))

    stop, results = Event(), list[Result]()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def one(seed: int) -> None:
        if stop.is_set():
            return
        logs = Path(tempfile.gettempdir())
        with ForkServer(*MODULES) as fork_server:
            report = partial(progress.report, seed)
            result = run_seed(fork_server, seed, options.seconds, logs=logs, report=report, stop=stop)
        if not stop.is_set():
            progress.ended(result)
            results.append(result)

    with ThreadPoolExecutor(options.jobs) as pool:
        futures = [pool.submit(one, seed) for seed in seeds]
        while wait(futures, timeout=0.2).not_done:
            pass  # an endless wait would miss a signal that comes just before it
        for future in futures:
            future.result()
    results.sort(key=lambda result: result.seed)
    if options.json:
        print(json.dumps({"results": [asdict(result) for result in results], "holds": not exit_status(results)}))
    else:
        table(results)
    return 130 if stop.is_set() else exit_status(results)


def cells(result: Result) -> list[str]:
    found = result.account
    counts = (found.accepted, found.unsure, found.lost, found.doubled, found.disordered, found.gone, found.dead)
    rest = (found.again, sum(result.faults.values()), round(result.seconds))
    return [str(result.seed), *(f"{count:,}" for count in (*counts, *rest))]


def table(results: list[Result]) -> None:
    rows = [list(COLUMNS), *map(cells, results)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    for result in results:
        if not result.holds:
            print(line(result))


def line(result: Result) -> str:
    """Return the result of a seed in one line."""
    found = result.account
    wrong = {"lost": found.lost, "doubled": found.doubled, "out of order": found.disordered, "gone": found.gone}
    wrong |= {"never pushed": found.foreign}
    problems = ", ".join(f"{count} {name}" for name, count in wrong.items() if count) or "nothing lost, doubled or gone"
    more = f"; still waiting: {result.waiting}" if result.waiting else ""
    more += f"; statuses at the stop: {result.stops}" if result.stops else ""
    more += f"; examples: {found.examples}" if found.examples else ""
    more += f"; {len(result.reasons)} ended by themselves: {result.reasons[0]}" if result.reasons else ""
    return f"seed {result.seed}: {found.accepted:,} accepted, {problems}{more}"


if __name__ == "__main__":
    sys.exit(main())
