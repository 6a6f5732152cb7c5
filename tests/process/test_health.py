"""The health file: live while the process responds, ready while it can work."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
from redis import Redis

from common.health import FILE, beat
from penstock.testing.server import EmbeddedServer
from tests.support.harness import ROOT, Service, eventually, until

PROBE = ROOT / "scripts" / "penstock-health"
LISTS: dict[str, Any] = {"in_": "in", "pending": "pending", "out": ["a"]}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the health file of every process that the test starts."""
    monkeypatch.setenv("PENSTOCK_HEALTH", str(tmp_path / "health"))
    return tmp_path / "health"


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


def probe(what: str) -> tuple[int, str]:
    """Return the exit status and the output of the probe."""
    asked = subprocess.run([PROBE, what], capture_output=True, text=True, timeout=20)
    return asked.returncode, (asked.stdout + asked.stderr).strip()


def is_ready() -> bool:
    return probe("ready") == (0, "ready")


def test_a_service_is_live_and_ready_until_it_ends(file: Path, server: EmbeddedServer, tmp_path: Path) -> None:
    assert probe("live") == (1, f"no service writes {file}")
    with Service("mpush", tmp_path / "log", redis=server.url, redis_namespace="demo", **LISTS) as service:
        until(is_ready)
        assert probe("live") == (0, "ready")
        assert service.stop() == 0
    assert not file.exists()
    assert not list(file.parent.glob("health*"))


def test_a_server_that_is_away_makes_it_unready_but_still_live(
    file: Path, server: EmbeddedServer, tmp_path: Path
) -> None:
    with Service("mpush", tmp_path / "log", redis=server.url, redis_namespace="demo", **LISTS):
        until(is_ready)
        server.stop()
        until(lambda: probe("ready")[0] == 1)
        status, words = probe("ready")
        assert (status, words.startswith("not ready: waiting: ")) == (1, True)
        assert probe("live")[0] == 0
        server.start()
        until(is_ready)


def test_a_server_that_is_silent_makes_it_unready(file: Path, server: EmbeddedServer, tmp_path: Path) -> None:
    with Service("mpush", tmp_path / "log", redis=server.url, redis_namespace="demo", **LISTS):
        until(is_ready)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            until(lambda: probe("ready")[1].startswith("not ready: waiting: no answer for "), 15)
            assert probe("live")[0] == 0
        finally:
            os.kill(server.pid, signal.SIGCONT)
        until(is_ready)


@pytest.mark.parametrize("service", ["mpush", "vpush"])
def test_a_standby_is_ready_again_after_its_server_was_away(
    tmp_path: Path, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, service: str
) -> None:
    settings = LISTS | ({"ordered": True} if service == "mpush" else {"out": "out", "out_redis": server.url})
    files = [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as stack:
        for file in files:
            monkeypatch.setenv("PENSTOCK_HEALTH", str(file))
            made = Service(service, tmp_path / f"{file.name}.log", redis=server.url, redis_namespace="demo", **settings)
            stack.enter_context(made)
        until(lambda: [file.exists() and file.read_text() for file in files] == ["ready\n"] * 2)
        server.stop()
        until(lambda: all(file.read_text().startswith("live: waiting: ") for file in files))
        server.start()
        until(lambda: [file.read_text() for file in files] == ["ready\n"] * 2)


def test_a_service_that_never_found_its_server_is_live(file: Path, tmp_path: Path) -> None:
    with Service("mpush", tmp_path / "log", redis="redis://127.0.0.1:1/0", **LISTS):
        until(lambda: probe("live")[0] == 0)
        until(lambda: probe("ready")[1].startswith("not ready: waiting: "))


def test_a_suspended_process_is_not_live(file: Path, server: EmbeddedServer, tmp_path: Path) -> None:
    with Service("mpush", tmp_path / "log", redis=server.url, **LISTS) as service:
        until(is_ready)
        service.signal(signal.SIGSTOP)
        now = time.time() - 30
        os.utime(file, (now, now))
        status, words = probe("live")
        assert (status, words.startswith("the service has not answered for 3")) == (1, True)
        service.signal(signal.SIGCONT)
        until(is_ready)


def test_a_deleted_registration_ends_the_work_and_not_the_container(
    file: Path, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep the process: with ``restart: unless-stopped`` an engine would restart it even after an order to stop."""
    monkeypatch.setenv("PENSTOCK_STAY", "1")
    with (
        Service("mpush", tmp_path / "log", redis=server.url, redis_namespace="demo", **LISTS) as service,
        Redis(port=server.port) as redis,
    ):
        until(is_ready)
        redis.delete("demo:1")
        until(lambda: probe("ready") == (1, "not ready: stopped: its registration was deleted"))
        assert probe("live")[0] == 0
        redis.lpush("in", "message")
        until(lambda: redis.lrange("demo:ids", 0, -1) == [])
        assert service.process is not None
        assert service.process.poll() is None
        assert redis.llen("in") == 1
        assert service.stop() == 0


def test_without_the_variable_a_deleted_registration_ends_the_process(server: EmbeddedServer, tmp_path: Path) -> None:
    with (
        Service("mpush", tmp_path / "log", redis=server.url, redis_namespace="demo", **LISTS) as service,
        Redis(port=server.port) as redis,
    ):
        until(lambda: redis.exists("demo:1"))
        redis.delete("demo:1")
        assert service.wait() == 0


def test_an_unwritable_file_is_logged_once_disturbs_nothing_and_is_written_once_it_can_be(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_HEALTH", str(tmp_path / "no" / "health"))
    with (
        Service("mpush", tmp_path / "log", redis=server.url, **LISTS) as service,
        Redis(port=server.port) as redis,
    ):
        redis.lpush("in", "message")
        until(lambda: redis.llen("a") == 1)
        (tmp_path / "no").mkdir()
        until(lambda: (tmp_path / "no" / "health").exists())
        assert service.stop() == 0
        assert service.log_text().count("the health file cannot be written") == 1


async def test_a_problem_is_written_whatever_its_letters_are(tmp_path: Path) -> None:
    file = tmp_path / "health"
    beating = asyncio.create_task(beat({FILE: str(file)}, lambda: "full: \udcff", structlog.get_logger()))
    await eventually(file.exists)
    assert file.read_text() == "live: full: \\udcff\n"
    beating.cancel()


def test_the_probe_refuses_other_words(file: Path) -> None:
    file.write_text("ready\n")
    assert probe("alive") == (2, "expected live or ready, found 'alive'")
