"""Figures of requests through mdispatch and their answers, compared with bare list moves and with hfx-bus."""

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
from bench.testbed import OUT, PYTHON, SOURCE, TRACKED, Testbed
from tests.support.harness import ROOT

HFXBUS: Final = "hfxbus@2.2.0"
Ask = Callable[[int, int], dict[str, float]]
"""A function of the number of requests and of those in flight; returns ``seconds`` for all and ``p50`` for one."""


def sequential(bed: Testbed, rounds: int, requests: int = 200) -> Figure:
    """Measure the p50 of one request at a time over that of bare forwarders, alternating; same client, same worker."""
    with through_mdispatch(bed) as service, through_bare_moves(bed) as bare:
        pairs = [(service(requests, 1)["p50"], bare(requests, 1)["p50"]) for _ in range(3 * rounds + 1)][1:]
    ours, theirs = (statistics.median(each) * 1e6 for each in zip(*pairs, strict=True))
    note = f"p50 {ours:.0f} us against {theirs:.0f} us"
    ratios = [service / bare for service, bare in pairs]
    return Figure("request and answer, one at a time, p50 / bare list moves'", "x", ratios, 2, note=note)


def in_flight(bed: Testbed, rounds: int, requests: int, at_a_time: int = 100) -> Figure:
    """Measure requests answered a second over those of hfx-bus, alternating, each with a client, a worker, a server."""
    name = f"request and answer, {at_a_time} in flight, requests a second / hfx-bus's"
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        if reason := _not_installed(directory):
            return Figure(name, "x", [], 1, at_least=True, missing=reason)
        with through_mdispatch(bed) as service, through_hfxbus(bed, directory) as hfxbus:
            pairs = [
                (requests / service(requests, at_a_time)["seconds"], requests / hfxbus(requests, at_a_time)["seconds"])
                for _ in range(rounds + 1)
            ][1:]
            alone = hfxbus(400, 1)["p50"] * 1e6
    ours, theirs = (statistics.median(each) / 1000 for each in zip(*pairs, strict=True))
    note = f"{ours:.1f} k/s against {theirs:.1f} k/s ({HFXBUS}; one at a time: p50 {alone:.0f} us)"
    return Figure(name, "x", [service / hfxbus for service, hfxbus in pairs], 1, at_least=True, note=note)


def _not_installed(directory: str) -> str:
    """Install hfx-bus in ``directory``; return why it failed, or ""."""
    if not (shutil.which("npm") and shutil.which("node")):
        return "no npm"
    command = ["npm", "install", "--prefix", directory, "--no-audit", "--no-fund", "--ignore-scripts", HFXBUS]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    return f"npm install {HFXBUS} failed" if done.returncode else ""


@contextmanager
def through_mdispatch(bed: Testbed) -> Iterator[Ask]:
    """Run mdispatch with a monitor, as in production."""
    with (
        bed.tracking(res="bench:res"),
        bed.monitor(),
        _worker(bed, OUT, "bench:res"),
        _client(bed, SOURCE, f"{TRACKED}:reply:all") as ask,
    ):
        yield ask


@contextmanager
def through_bare_moves(bed: Testbed) -> Iterator[Ask]:
    """Run two forwarders, one in each direction, with one list for all answers."""
    asked, taken, answered, replies = (f"bench:bare:{name}" for name in ("in", "out", "res", "re"))
    with (
        bare_forwarder(bed, asked, taken),
        bare_forwarder(bed, answered, replies),
        _worker(bed, taken, answered),
        _client(bed, asked, replies) as ask,
    ):
        yield ask


@contextmanager
def through_hfxbus(bed: Testbed, directory: str) -> Iterator[Ask]:
    script = ("node", str(Path(__file__).parent / "hfxbus.js"), str(bed.server.port))
    environment = {"NODE_PATH": f"{directory}/node_modules"}
    with bed.run_process(*script, "answer", **environment), _asking(*script, "ask", **environment) as ask:
        yield ask


@contextmanager
def _worker(bed: Testbed, source: str, to: str) -> Iterator[None]:
    with bed.run_process(*PYTHON, "bench.worker", str(bed.server.port), source, to, "answered"):
        yield


@contextmanager
def _client(bed: Testbed, source: str, replies: str) -> Iterator[Ask]:
    with _asking(*PYTHON, "bench.client", str(bed.server.port), source, replies) as ask:
        yield ask


@contextmanager
def _asking(*command: str, **environment: str) -> Iterator[Ask]:
    """Start a process that reads lines of two numbers and prints the times as JSON (see ``bench.client``)."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, text=True, **pipes)  # type: ignore[call-overload]
        )
        stack.callback(process.kill)

        def ask(requests: int, at_a_time: int) -> dict[str, float]:
            print(requests, at_a_time, file=process.stdin, flush=True)
            reply: dict[str, float] = json.loads(process.stdout.readline())
            return reply

        yield ask
