"""Requests through mdispatch to a worker and their answers back, against bare list moves and against hfx-bus."""

import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.figures import Figure, bare_forwarder
from bench.stage import OUT, PYTHON, SOURCE, TRACKED, Stage
from tests.harness import ROOT

HFXBUS: Final = "hfxbus@2.2.0"
Ask = Callable[[int, int], dict[str, float]]
"""Takes how many requests and how many at a time; returns the ``seconds`` for all and the ``p50`` of one."""


def sequential(stage: Stage, rounds: int, requests: int = 200) -> Figure:
    """One request at a time, the p50 of its answer over that of bare forwarders, in turns; same client, same worker."""
    with through_mdispatch(stage) as service, through_bare_moves(stage) as bare:
        pairs = [(service(requests, 1)["p50"], bare(requests, 1)["p50"]) for _ in range(3 * rounds + 1)][1:]
    ours, theirs = (statistics.median(each) * 1e6 for each in zip(*pairs, strict=True))
    note = f"p50 {ours:.0f} us against {theirs:.0f} us"
    ratios = [service / bare for service, bare in pairs]
    return Figure("request and answer, one at a time, p50 / bare list moves'", "x", ratios, 2, note=note)


def in_flight(stage: Stage, rounds: int, requests: int, at_a_time: int = 100) -> Figure:
    """Requests answered a second, over those of hfx-bus, in turns; in either a client, a worker and the server."""
    name = f"request and answer, {at_a_time} in flight, requests a second / hfx-bus's"
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        if reason := _not_installed(directory):
            return Figure(name, "x", [], 1, at_least=True, missing=reason)
        with through_mdispatch(stage) as service, through_hfxbus(stage, directory) as hfxbus:
            pairs = [
                (requests / service(requests, at_a_time)["seconds"], requests / hfxbus(requests, at_a_time)["seconds"])
                for _ in range(rounds + 1)
            ][1:]
            alone = hfxbus(400, 1)["p50"] * 1e6
    ours, theirs = (statistics.median(each) / 1000 for each in zip(*pairs, strict=True))
    note = f"{ours:.1f} k/s against {theirs:.1f} k/s ({HFXBUS}; one at a time: p50 {alone:.0f} us)"
    return Figure(name, "x", [service / hfxbus for service, hfxbus in pairs], 1, at_least=True, note=note)


def _not_installed(directory: str) -> str:
    """Install hfx-bus in ``directory``; return why it could not be, or ""."""
    if not (shutil.which("npm") and shutil.which("node")):
        return "no npm"
    command = ["npm", "install", "--prefix", directory, "--no-audit", "--no-fund", "--ignore-scripts", HFXBUS]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    return f"npm install {HFXBUS} failed" if done.returncode else ""


@contextmanager
def through_mdispatch(stage: Stage) -> Iterator[Ask]:
    """Run mdispatch with a monitor, as it should be run."""
    with (
        stage.tracking(res="bench:res"),
        stage.monitor(),
        _worker(stage, OUT, "bench:res"),
        _client(stage, SOURCE, f"{TRACKED}:reply:all") as ask,
    ):
        yield ask


@contextmanager
def through_bare_moves(stage: Stage) -> Iterator[Ask]:
    """Two forwarders, one each way, that know one list for all answers."""
    asked, taken, answered, replies = (f"bench:bare:{name}" for name in ("in", "out", "res", "re"))
    with (
        bare_forwarder(stage, asked, taken),
        bare_forwarder(stage, answered, replies),
        _worker(stage, taken, answered),
        _client(stage, asked, replies) as ask,
    ):
        yield ask


@contextmanager
def through_hfxbus(stage: Stage, directory: str) -> Iterator[Ask]:
    script = ("node", str(Path(__file__).parent / "hfxbus.js"), str(stage.server.port))
    environment = {"NODE_PATH": f"{directory}/node_modules"}
    with stage.beside(*script, "answer", **environment), _asking(*script, "ask", **environment) as ask:
        yield ask


@contextmanager
def _worker(stage: Stage, source: str, to: str) -> Iterator[None]:
    with stage.beside(*PYTHON, "bench.worker", str(stage.server.port), source, to, "answered"):
        yield


@contextmanager
def _client(stage: Stage, source: str, replies: str) -> Iterator[Ask]:
    with _asking(*PYTHON, "bench.client", str(stage.server.port), source, replies) as ask:
        yield ask


@contextmanager
def _asking(*command: str, **environment: str) -> Iterator[Ask]:
    """Start a process that reads two numbers a line and prints as JSON how long that took."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, text=True, **pipes)  # type: ignore[call-overload]
        )
        stack.callback(process.kill)

        def ask(requests: int, at_a_time: int) -> dict[str, float]:
            print(requests, at_a_time, file=process.stdin, flush=True)
            said: dict[str, float] = json.loads(process.stdout.readline())
            return said

        yield ask
