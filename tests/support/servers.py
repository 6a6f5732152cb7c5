"""Kinds of server for tests, which differ in the commands that a full one refuses; sentinels, and calls of commands."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.base.ports import free_port
from penstock.core.orphaned import Watchdog
from penstock.testing.server import EmbeddedServer, binary

KINDS = ("embedded", "redis-server")
"""The embedded server and the system's. In MULTI, a full Redis refuses every command, Valkey 9 only writes."""


@contextmanager
def started(kind: str) -> Iterator[EmbeddedServer]:
    """Yield a server of that kind; skip the test if none is installed."""
    with pytest.MonkeyPatch.context() as patch:
        if kind != "embedded":
            if not (path := shutil.which(kind)):
                pytest.skip(f"{kind} is not installed")
            patch.setenv("PENSTOCK_SERVER", path)
        with EmbeddedServer() as server:
            patch.undo()
            yield server


def commands(client: "Redis") -> dict[str, int]:
    """Return the calls of each command since the last CONFIG RESETSTAT, without those of the test."""
    ours = {"info", "config|resetstat", "config"}
    calls = {name.removeprefix("cmdstat_"): found["calls"] for name, found in client.info("commandstats").items()}
    return {name: count for name, count in calls.items() if name not in ours}


@contextmanager
def sentinel(
    directory: Path, port_of_server: int, password: str = "", *own: str, host: str = "127.0.0.1", down_after: int = 300
) -> Iterator[int]:
    """Run a sentinel and yield its port; it monitors the server as ``mine``. ``own`` are further lines of its file.

    It considers a server down after ``down_after`` milliseconds without an answer.
    """
    port, configuration = free_port(), directory / "sentinel.conf"
    options: dict[str, Any] = {"down-after-milliseconds": down_after, "failover-timeout": 1000}
    options |= {"auth-pass": password} if password else {}
    configuration.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
        + "".join(f"{line}\n" for line in own)
        + f"sentinel monitor mine {host} {port_of_server} 1\n"
        + "".join(f"sentinel {name} mine {value}\n" for name, value in options.items())
    )
    process = subprocess.Popen([binary(), configuration, "--sentinel"], stdout=subprocess.DEVNULL)
    watchdog = Watchdog(process.pid)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(60)
        watchdog.release()
