"""Lifecycle of a service process: start, waiting for servers, logs, and end."""

import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from redis import Redis
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as Unanswered
from structlog.testing import capture_logs

from penstock.base.ports import free_port
from penstock.core.link import Outage
from penstock.testing.server import EmbeddedServer
from tests.support.harness import ROOT, Service, until

NAMES = {"in_": "in", "pending": "pending", "out": ["a", "b"], "redis_namespace": "demo"}
Start = Callable[..., Service]


@pytest.fixture
def mpush(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts mpush on a URL with more settings; end all of them with the test."""
    started: list[Service] = []

    def start(url: str, **more: Any) -> Service:
        service = Service("mpush", tmp_path / f"log{len(started)}", **{**NAMES, "redis": url, **more})
        started.append(service)
        return service.start()

    yield start
    for service in started:
        service.__exit__(None, None, None)


@contextmanager
def client(server: EmbeddedServer, **options: Any) -> Iterator["Redis"]:
    with Redis(port=server.port, protocol=2, **options) as connected:
        yield connected


def log_of(service: Service, event: str | None = None) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in service.log_text().splitlines()]
    return [line for line in lines if event in (None, line["event"])]


def idle(service: Service, url: str) -> None:
    """Wait until ``service`` is registered and waits for messages."""
    with Redis.from_url(url) as connected:
        until(lambda: log_of(service, "registered") and connected.info("clients")["blocked_clients"] == 1)


@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_service_stops_at_once_with_0_and_a_clean_registry(
    mpush: Start, redis: Any, redis_url: str, server: EmbeddedServer, order: signal.Signals
) -> None:
    """MP-D24: the original knows no SIGINT."""
    service = mpush(redis_url, pop_timeout=30)
    idle(service, redis_url)
    asked = time.monotonic()
    service.signal(order)
    assert service.wait() == 0
    assert time.monotonic() - asked < 15
    left = b"demo:id", b"demo:lists", b"demo:metrics:start", b"demo:shape", b"penstock:registered"
    with client(server) as connected:
        assert sorted(connected.keys()) == [*left]
    (ended,) = log_of(service, "ended")
    assert (ended["key"], ended["del"], ended["lrem"]) == ("demo:1", 1, 1)


@pytest.mark.parametrize("key", ["demo:ids", "demo:owners", "demo:1"])
def test_a_stop_ends_with_0_even_if_a_registry_key_is_of_another_type(
    mpush: Start, redis: Any, redis_url: str, server: EmbeddedServer, key: str
) -> None:
    service = mpush(redis_url, pop_timeout=30)
    idle(service, redis_url)
    service.signal(signal.SIGSTOP)
    with client(server) as connected:
        connected.set(key, "in the way")
    service.signal(signal.SIGTERM)
    service.signal(signal.SIGCONT)
    assert service.wait() == 0
    (line,) = log_of(service, "not deregistered; the registration ends by itself")
    assert line["reason"].startswith(f"{key} holds a string, expected a ")


ORDERED_WHILE_IMPORTING = """
import os, signal, sys

class Orders:
    def find_spec(self, name, path, target=None):
        if name == "redis":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Orders())
"""


def ordered_while_importing(tmp_path: Path, service: str, *arguments: str, **settings: str) -> tuple[int, str]:
    """Send SIGHUP and SIGTERM to a service while it is imported; return its exit status and output."""
    (tmp_path / "sitecustomize.py").write_text(ORDERED_WHILE_IMPORTING)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), **settings}
    command = [sys.executable, "-m", f"services.{service}", *arguments]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("service", sorted(file.parent.name for file in ROOT.glob("services/*/__main__.py")))
def test_orders_that_come_while_a_service_is_imported_do_not_kill_it(tmp_path: Path, service: str) -> None:
    status, said = ordered_while_importing(tmp_path, service, "--help")
    assert status == 0, said
    assert f"usage: {service}" in said


def test_orders_that_come_while_a_service_is_imported_are_obeyed(tmp_path: Path) -> None:
    lists = {"MPUSH_IN": "in", "MPUSH_PENDING": "pending", "MPUSH_OUT": "a"}
    server = f"redis://127.0.0.1:{free_port()}/0"
    status, said = ordered_while_importing(tmp_path, "mpush", MPUSH_REDIS=server, **lists)
    assert status == 0, said
    assert "Traceback" not in said


def test_a_wrong_password_ends_the_service_with_1_and_is_shown_nowhere(mpush: Start) -> None:
    with EmbeddedServer(requirepass="rightsecret") as server:
        service = mpush(f"redis://user:wrongsecret@127.0.0.1:{server.port}/0?password=wrongsecret")
        assert service.wait() == 1
        (failed,) = log_of(service, "failed")
        assert "invalid username-password pair" in failed["reason"]
        assert "exception" not in failed
        assert "wrongsecret" not in service.log_text()


def test_a_right_password_is_shown_nowhere_either(mpush: Start) -> None:
    with EmbeddedServer(requirepass="rightsecret") as server:
        url = f"redis://:rightsecret@127.0.0.1:{server.port}"
        service = mpush(f"{url}/0", service_redis=f"{url}/1", logger_level="debug")
        until(lambda: log_of(service, "registered"))
        server.restart()
        until(lambda: log_of(service, "resumed"))
        assert service.stop() == 0
        assert "rightsecret" not in service.log_text()
        (settings,) = log_of(service, "settings")
        assert settings["redis"] == f"redis://:***@127.0.0.1:{server.port}/0"


class OutdatedServer(socketserver.StreamRequestHandler):
    """A stub of an outdated server with the replies that a service asks for."""

    def handle(self) -> None:
        while header := self.rfile.readline():
            words = []
            for _ in range(int(header[1:])):
                length = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(length + 2)[:-2].upper())
            info = b"redis_version:6.0.16\r\nrun_id:old\r\n"
            answers = {b"INFO": b"$%d\r\n%s\r\n" % (len(info), info), b"EXISTS": b":0\r\n", b"CLIENT": b"+OK\r\n"}
            self.wfile.write(answers.get(words[0], b"-ERR unknown command\r\n"))


def test_a_server_that_is_too_old_is_refused(mpush: Start) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), OutdatedServer) as old:
        old.daemon_threads = True
        threading.Thread(target=old.serve_forever, daemon=True).start()
        service = mpush(f"redis://127.0.0.1:{old.server_address[1]}")
        assert service.wait() == 1
        old.shutdown()
    (failed,) = log_of(service, "failed")
    assert failed["reason"] == "the server is Redis 6.0.16; 6.2 or newer is needed (BLMOVE, LMOVE)"


def test_a_server_that_cannot_be_as_durable_as_asked_is_refused(
    mpush: Start, redis: Any, redis_url: str, server: EmbeddedServer
) -> None:
    service = mpush(redis_url, durability="aof")
    assert service.wait() == 1
    assert "durability aof needs" in log_of(service, "failed")[0]["reason"]
    with client(server) as connected:
        assert connected.hget("demo:metrics:error", "count") == b"1"
        assert b"durability aof needs" in (connected.hget("demo:metrics:error", "last") or b"")
        assert not connected.exists("demo:id", "demo:ids")


def test_settings_that_cannot_be_used_end_it_with_2_before_anything_is_touched(
    mpush: Start, redis: Any, redis_url: str, server: EmbeddedServer
) -> None:
    service = mpush(redis_url, pop_timeout=4, out=["in", "b"])
    assert service.wait() == 2
    assert len(service.log_text().splitlines()) == 2
    with client(server) as connected:
        assert connected.keys() == []


def test_a_service_that_cannot_settle_in_time_ends_with_1(mpush: Start) -> None:
    """MP-36: after stopTimeout the process ends in any case."""
    with EmbeddedServer() as server:
        service = mpush(server.url, stop_timeout=1)
        idle(service, server.url)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            asked = time.monotonic()
            assert service.stop() == 1
            assert 1 <= time.monotonic() - asked < 15
        finally:
            os.kill(server.pid, signal.SIGCONT)
        (late,) = log_of(service, "did not stop in time")
        assert late["stop_timeout"] == 1


def test_a_stop_while_the_server_is_away_takes_no_time(mpush: Start) -> None:
    with EmbeddedServer() as server:
        service = mpush(server.url)
        idle(service, server.url)
        server.stop()
        until(lambda: log_of(service, "waiting"))
        asked = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - asked < 15
    (line,) = log_of(service, "not deregistered; the registration ends by itself")
    assert line["level"] == "warning"


def test_a_service_that_never_found_its_server_can_be_stopped(mpush: Start) -> None:
    service = mpush(f"redis://127.0.0.1:{free_port()}")
    until(lambda: log_of(service, "waiting"))
    assert service.stop() == 0
    assert [line["event"] for line in log_of(service)] == ["settings", "waiting"]


def test_a_service_waits_for_a_server_that_starts_later(mpush: Start) -> None:
    port = free_port()
    service = mpush(f"redis://127.0.0.1:{port}")
    until(lambda: log_of(service, "waiting"))
    with EmbeddedServer(port=port) as server, client(server) as connected:
        connected.lpush("in", "one")
        assert connected.blpop(["a"], 10) == (b"a", b"one")
        assert service.stop() == 0
    assert len(log_of(service, "waiting")) == 1
    assert len(log_of(service, "resumed")) == 1


def test_a_server_that_still_loads_is_waited_for(mpush: Start, tmp_path: Path) -> None:
    with EmbeddedServer(directory=tmp_path, aof=True, key_load_delay="100") as server, client(server) as connected:
        connected.mset({f"key {number}": number for number in range(8000)})
        server.stop()
        service = mpush(server.url)
        until(lambda: log_of(service, "waiting"))
        server.start()
        until(lambda: log_of(service, "registered"))
        assert service.stop() == 0
    assert not log_of(service, "failed")


def test_an_outage_is_logged_once_and_its_end_once_with_its_duration(mpush: Start) -> None:
    with EmbeddedServer(aof=True) as server:
        service = mpush(server.url)
        idle(service, server.url)
        server.stop()
        until(lambda: log_of(service, "waiting"))
        away = time.monotonic()
        until(lambda: time.monotonic() - away > 1.2)
        server.start()
        until(lambda: log_of(service, "resumed"))
        idle(service, server.url)
        assert service.stop() == 0
    kinds = [line["event"] for line in log_of(service)]
    assert kinds.count("resumed") == 1
    assert 1 <= kinds.count("waiting") <= 2  # closed, then refused, if both occur
    assert len({line["reason"] for line in log_of(service, "waiting")}) == kinds.count("waiting")
    (resumed,) = log_of(service, "resumed")
    assert 1.2 <= resumed["after"] < 10
    assert kinds.count("registered") == 1  # the server kept the registration


def test_each_kind_of_trouble_is_logged_once_for_each_server() -> None:
    with capture_logs() as lines:
        trouble = Outage(structlog.get_logger())
        for _ in range(2):
            for words in ("closed", "the other server: closed", "the other server: refused", "refused"):
                trouble.begins(Disconnected(words))
            trouble.begins(Unanswered("the other server: silent"))
        trouble.over()
        trouble.begins(Disconnected("closed"))
    assert [line.get("reason") for line in lines] == [
        "the other server: closed",
        "refused",
        "the other server: silent",
        None,
    ], "a first lost connection is not said alone"


def test_a_server_that_may_lose_messages_is_logged_once(mpush: Start) -> None:
    with EmbeddedServer(maxmemory_policy="allkeys-lru") as server:
        service = mpush(server.url)
        idle(service, server.url)
        server.restart()
        until(lambda: log_of(service, "resumed"))
        assert service.stop() == 0
    (evicts,) = log_of(service, "messages may be evicted")
    assert (evicts["maxmemory_policy"], evicts["level"]) == ("allkeys-lru", "warning")
    (forgets,) = log_of(service, "the server keeps nothing on disk")
    assert forgets["expected"] == "appendonly yes"


@pytest.mark.parametrize("options", [{"aof": True}, {"save": ("60", "1")}])
def test_a_server_that_keeps_messages_is_not_logged(mpush: Start, options: dict[str, Any]) -> None:
    with EmbeddedServer(**options) as server:
        service = mpush(server.url)
        idle(service, server.url)
        assert service.stop() == 0
    assert [line for line in log_of(service) if line["level"] == "warning"] == []


@pytest.mark.parametrize(("ordered", "elsewhere"), [(False, False), (True, False), (False, True)])
def test_a_service_has_two_connections_and_one_more_where_registrations_are_elsewhere(
    mpush: Start, redis: Any, redis_url: str, server: EmbeddedServer, ordered: bool, elsewhere: bool
) -> None:
    more = {"service_redis": redis_url.replace("/0", "/1")} if elsewhere else {}
    service = mpush(redis_url, ordered=str(ordered).lower(), **more)
    idle(service, redis_url)
    with client(server) as connected:
        connected.lpush("in", *range(1000))
        until(lambda: connected.llen("b") == 1000)
        names = [each["name"] for each in connected.client_list()]
        assert names.count("penstock-mpush") == 2 + elsewhere
    assert service.stop() == 0


def test_without_a_namespace_there_are_the_lists_and_nothing_else(
    mpush: Start, redis: Any, redis_url: str, server: EmbeddedServer
) -> None:
    service = mpush(redis_url, redis_namespace="")
    with client(server) as connected:
        connected.lpush("in", "one")
        assert connected.blpop(["a"], 10) == (b"a", b"one")
        assert connected.keys() == [b"b"]
    assert service.stop() == 0


def test_a_server_that_closes_every_connection_at_once_does_not_end_the_service(mpush: Start) -> None:
    with socket.socket() as rude:
        rude.bind(("127.0.0.1", 0))
        rude.listen()
        service = mpush(f"redis://127.0.0.1:{rude.getsockname()[1]}")
        for _ in range(3):
            rude.accept()[0].close()
        assert service.stop() == 0
    assert not log_of(service, "failed")
