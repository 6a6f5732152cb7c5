"""Load of HTTP: wrk, and servers on free ports to compare with."""

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench.testbed import PYTHON, Testbed
from penstock.base.ports import free_port
from tests.support.harness import ROOT, Service, until

CONNECTIONS: Final = 64
WRK: Final = "no wrk (Debian: wrk)"
OUT: Final = "bench:requests"
IMPORTER: Final = "bench:himporter"
UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


def without_wrk() -> str:
    """Return why nothing can be measured with wrk; empty if it is installed."""
    return "" if shutil.which("wrk") else WRK


class Rate(NamedTuple):
    """What wrk has measured: requests a second, and the 50th and 99th percentile of their times (s)."""

    requests: float
    p50: float
    p99: float


def wrk(url: str, seconds: int, connections: int = CONNECTIONS, script: Path | None = None) -> Rate:
    """Ask for ``url`` again and again. Raise ``AssertionError`` if an answer is an error."""
    words = [
        "wrk",
        "--latency",
        "--timeout",
        "30s",
        "-t1",
        f"-c{connections}",
        f"-d{seconds}s",
        *(["-s", str(script)] if script else []),
    ]
    done = subprocess.run([*words, url], capture_output=True, text=True, timeout=seconds + 60, check=True)
    text = done.stdout
    assert "Non-2xx" not in text, text
    assert "Socket errors" not in text, text
    [rate] = re.findall(r"Requests/sec:\s+([\d.]+)", text)
    times = dict(re.findall(r"(50|99)%\s+([\d.]+\w+)", text))
    return Rate(float(rate), _seconds(times["50"]), _seconds(times["99"]))


def _seconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(\w+)", text).groups()  # type: ignore[union-attr]
    return float(number) * UNITS[unit]


def listens(port: int) -> bool:
    """Return whether a program listens on ``port``."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def uvicorn(bed: Testbed) -> Iterator[str]:
    """Run uvicorn with a bare application; yield its URL. It greets, and echoes bodies."""
    with serving(*PYTHON, "bench.web.bare", log=bed.log) as url:
        yield url


@contextmanager
def serving(*command: str, log: Path, **environment: str) -> Iterator[str]:
    """Run a server that gets its port as the last word; yield its URL."""
    port = free_port()
    with (
        log.open("ab") as output,
        subprocess.Popen(
            [*command, str(port)], cwd=ROOT, stdout=output, stderr=output, env=environment or None
        ) as process,
    ):
        try:
            until(lambda: listens(port))
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.kill()


@contextmanager
def himporter(bed: Testbed, **settings: object) -> Iterator[tuple[Service, str]]:
    """Run himporter until it is ready; yield it and its URL."""
    port = free_port()
    given = {"redis_namespace": IMPORTER, "out": OUT, "listen_port": port, **settings}
    with Service("himporter", bed.log, redis=bed.url, **given) as service:
        until(lambda: service.runs() and listens(port))
        until(lambda: bed.redis.exists(f"{IMPORTER}:ids"))
        yield service, f"http://127.0.0.1:{port}/"
        service.stop()


@contextmanager
def echo_worker(bed: Testbed, source: str = OUT) -> Iterator[None]:
    """Run a program that answers the requests of a list with their bodies, in batches."""
    with bed.run_process(sys.executable, "-m", "bench.web.echo", str(bed.server.port), source):
        yield
