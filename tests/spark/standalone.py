"""Standalone Spark cluster on this machine: a master and two workers of one core each, on free ports."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final
from zipfile import ZipFile

import psutil

from penstock.testing.server import free_port
from tests.harness import ROOT, until

SMALL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java for a fast start and little CPU."""
DAEMONS: Final = "org.apache.spark.deploy"


def wheel(directory: Path) -> Path:
    """Make a wheel of this project in ``directory``."""
    made = directory / "penstock-0.2.0-py3-none-any.whl"
    with ZipFile(made, "w") as archive:
        for house in ("penstock", "common", "services"):
            for path in sorted((ROOT / house).rglob("*")):
                if path.suffix in (".py", ".lua"):
                    archive.write(path, path.relative_to(ROOT))
    return made


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """Start a cluster and yield the URL of its master; kill all of its processes at the end."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    node = ("--cores", "1", "--memory", "512m", "--webui-port", "0", "--host", "127.0.0.1")
    with ExitStack() as stack:
        words = ("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        master = stack.enter_context(_daemon(directory / "master.log", *words))
        until(lambda: "I have been elected leader" in _said(master), 60)
        for name in ("one", "two"):
            place = ("--work-dir", str(directory / name))
            stack.enter_context(_daemon(directory / f"{name}.log", "worker.Worker", *node, *place, url))
        until(lambda: _said(master).count("Registering worker") == 2, 60)
        yield url


def _said(log: Path) -> str:
    return log.read_text(errors="replace")


@contextmanager
def _daemon(log: Path, name: str, *words: str) -> Iterator[Path]:
    """Start a daemon and yield the path of its log; kill it and its children at the end."""
    environment = os.environ | {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": SMALL}
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["spark-class", f"{DAEMONS}.{name}", *words],
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
    try:
        yield log
    finally:
        below = _kill(process.pid)
        process.wait()
        _, left = psutil.wait_procs(below, 10)
        assert not left


def run(*words: str | Path, cwd: Path, environment: dict[str, str], seconds: float) -> tuple[int, str]:
    """Run a command for at most ``seconds``, then kill it and its children. Return its exit status and output."""
    with subprocess.Popen(
        words, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        finally:
            _kill(process.pid)
    return process.returncode, said


def _kill(pid: int) -> list[psutil.Process]:
    """Kill ``pid`` and its descendants, which may be in other process groups. Return the descendants."""
    with suppress(psutil.NoSuchProcess):
        family = [(process := psutil.Process(pid)), *process.children(recursive=True)]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        return family[1:]
    return []
