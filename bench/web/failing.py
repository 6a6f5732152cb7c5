"""Figures of the web composition: its rate beside an importer alone, and what fails if parts end or the server goes."""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import httpx

from bench.figures import Figure
from bench.testbed import Testbed
from bench.web.load import CONNECTIONS, echo_worker, himporter, without_wrk, wrk
from compose.runner import SETTING_PREFIXES
from compose.web.load import Load, Step
from penstock.base.ports import free_port
from penstock.composition.procfile import ProcessGroup
from tests.support.harness import ROOT, until

WEB: Final = ROOT / "compose" / "web"
PAGE: Final = "days/2012-01-01"
REQUESTS_A_SECOND: Final = 500
STALE_SECONDS: Final = 1.0
"""Seconds in which a request is answered with 503 while the server is away: at once, on a machine that is busy."""


@asynccontextmanager
async def composition(bed: Testbed) -> AsyncIterator[tuple[ProcessGroup, int]]:
    """Run compose/web until it serves a page; yield it and its port."""
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTING_PREFIXES)}
    here = Path.cwd()
    os.chdir(ROOT)
    try:
        with bed.log.open("a") as log:
            async with ProcessGroup(WEB, write=lambda line: print(line.data.decode(), file=log)) as processes:
                await processes.start({**kept, "REDIS": bed.url, "HIMPORTER_LISTEN_PORT": str(port)})
                await asyncio.to_thread(until, partial(_serves, port))
                yield processes, port
    finally:
        os.chdir(here)


def _serves(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/{PAGE}", timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


def whole(bed: Testbed, rounds: int, seconds: int) -> Figure:
    """Measure a page of the whole composition beside the answer of an importer with an echo worker, in turns."""
    name = f"compose/web, a page, {CONNECTIONS} connections, requests a second / himporter alone"
    if missing := without_wrk():
        return Figure(name, "x", [], 0.4, at_least=True, missing=missing)
    pairs = asyncio.run(_pairs(bed, rounds, seconds))
    ours, theirs = (statistics.median(each) for each in zip(*pairs[1:], strict=True))
    note = f"{ours / 1000:,.2f} k/s against {theirs / 1000:,.2f} k/s"
    return Figure(name, "x", [one / other for one, other in pairs[1:]], 0.4, at_least=True, note=note)


async def _pairs(bed: Testbed, rounds: int, seconds: int) -> list[tuple[float, float]]:
    """Return the requests a second of both, in turns; the first turn warms up."""
    pairs = []
    async with composition(bed) as (_, port):
        with himporter(bed) as (_, alone), echo_worker(bed):
            for _ in range(rounds + 1):
                page = await asyncio.to_thread(wrk, f"http://127.0.0.1:{port}/{PAGE}", seconds)
                pairs.append((page.requests, (await asyncio.to_thread(wrk, alone, seconds)).requests))
    return pairs


def ends(bed: Testbed, seconds: float) -> Figure:
    """Count idempotent requests that fail under a load in which an importer stops and a worker is killed."""
    found = asyncio.run(_break_two(bed, seconds))
    load = f"{REQUESTS_A_SECOND} requests a second for {seconds:g} s"
    name = f"compose/web, {load}, SIGTERM of an importer, kill -9 of a worker"
    slowest = f"{found.asked:,} requests, {found.again} asked again, slowest {found.slowest:.1f} s"
    return Figure(f"{name}: failed idempotent requests", "", [len(found.failed)], 0, note=slowest)


async def _break_two(bed: Testbed, seconds: float) -> Step:
    async with composition(bed) as (processes, port):
        load = Load("127.0.0.1", port, REQUESTS_A_SECOND)
        load.begin("all")
        running = asyncio.create_task(load.run(seconds))
        await asyncio.sleep(seconds / 3)
        await processes.kill("importer-one", signal.SIGTERM)
        await asyncio.sleep(seconds / 3)
        await processes.kill("worker-1")
        await running
        return load.steps[0]


def away(bed: Testbed, seconds: float) -> list[Figure]:
    """Kill the server for ``seconds`` under load: how long the slowest 503 takes, and how soon service resumes."""
    took, resumed, kinds = list[float](), 0.0, set[int]()
    with himporter(bed) as (_, url), ExitStack() as working, httpx.Client(timeout=60) as client:
        working.enter_context(echo_worker(bed))
        assert client.get(url).status_code == 200
        working.pop_all().close()
        bed.server.kill()
        time.sleep(0.2)
        until_time = time.monotonic() + seconds
        while time.monotonic() < until_time:
            begin = time.perf_counter()
            kinds.add(client.get(url).status_code)
            took.append(time.perf_counter() - begin)
            time.sleep(0.005)
        bed.server.start()
        begin = time.monotonic()
        with echo_worker(bed):
            until(lambda: client.get(url).status_code == 200)
            resumed = time.monotonic() - begin
    assert kinds == {503}, kinds
    note = f"{len(took):,} requests, median {statistics.median(took) * 1000:.1f} ms"
    return [
        Figure(f"server away for {seconds:g} s: slowest 503", "s", [max(took)], STALE_SECONDS, note=note),
        Figure(f"server away for {seconds:g} s: until service resumes", "s", [resumed], 2),
    ]


def plan(quick: bool) -> list[Callable[[Testbed], Figure | list[Figure]]]:
    """Return the benchmarks of the composition, and of faults."""
    rounds, seconds = (3, 2) if quick else (7, 5)
    return [
        lambda bed: whole(bed, rounds, seconds),
        lambda bed: ends(bed, 12 if quick else 60),
        lambda bed: away(bed, 10 if quick else 90),
    ]
