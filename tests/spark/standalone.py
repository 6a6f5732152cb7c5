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

from penstock.base.ports import free_port
from tests.support.harness import ROOT, until

SMALL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java for a fast start and little CPU."""
DAEMONS: Final = "org.apache.spark.deploy"


def wheel(directory: Path) -> Path:
    """Make a wheel of this project in ``directory``."""
    made = directory / "penstock-0.2.0-py3-none-any.whl"
    with ZipFile(made, "w") as archive:
        for house in ("penstock", "common", "services"):
            for path in sorted((ROOT / house).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    archive.write(path, path.relative_to(ROOT))
    return made


class Cluster:
    """A running master and its workers."""

    def __init__(self, url: str, master: Path, directory: Path, stack: ExitStack) -> None:
        self.url = url
        self._master, self._directory, self._stack = master, directory, stack
        self._workers: list[ExitStack] = []
        self._started = 0

    def add_worker(self) -> None:
        """Start a worker, which registers later."""
        self._started += 1
        node = ("--cores", "1", "--memory", "512m", "--webui-port", "0", "--host", "127.0.0.1")
        place = ("--work-dir", str(self._directory / f"worker{self._started}"))
        worker = self._stack.enter_context(ExitStack())
        log = self._directory / f"worker{self._started}.log"
        worker.enter_context(_daemon(log, "worker.Worker", *node, *place, self.url))
        self._workers.append(worker)

    def kill_a_worker(self) -> None:
        """Kill the oldest worker with its executors, without a word to anybody."""
        self._workers.pop(0).close()

    def are_registered(self) -> bool:
        """Return whether all workers that were ever started have registered."""
        return _said(self._master).count("Registering worker") == self._started


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    """Start a cluster of two workers; kill all of its processes at the end."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        words = ("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        master = stack.enter_context(_daemon(directory / "master.log", *words))
        until(lambda: "I have been elected leader" in _said(master), 60)
        made = Cluster(url, master, directory, stack)
        for _ in range(2):
            made.add_worker()
        until(made.are_registered, 60)
        yield made


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


@contextmanager
def running(
    *words: str | Path, log: Path, cwd: Path, environment: dict[str, str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a command and yield its process; kill it and its children at the end."""
    with log.open("wb") as file, subprocess.Popen(words, cwd=cwd, env=environment, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            _kill(process.pid)


def _kill(pid: int) -> list[psutil.Process]:
    """Kill ``pid`` and its descendants, which may be in other process groups. Return the descendants."""
    with suppress(psutil.NoSuchProcess):
        family = [(process := psutil.Process(pid)), *process.children(recursive=True)]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        return family[1:]
    return []
