"""Shell lines from mpush-redis's README, as printed there, with its props file, on a terminal."""

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock.testing.server import EmbeddedServer
from tests.support.harness import ROOT, until

DEMO = """
module.exports = {
   redis: 'redis://localhost:6379/0',
   in: 'demo:mpush:in',
   pending: 'demo:mpush:pending',
   popTimeout: 10,
   out: [ 'demo:mpush:out0', 'demo:mpush:out1' ]
};
"""
REGISTERED = """
// a service with a registration, and everything else that may be set
module.exports = {
   redis: 'redis://localhost:6379/0',
   serviceRedis: 'redis://localhost:6379/0',
   serviceNamespace: 'demo:mpush',
   popTimeout: 10,
   in: 'demo:mpush:in',
   pending: 'demo:mpush:pending',
   out: ['demo:mpush:out0', 'demo:mpush:out1'],
   done: 'demo:mpush:done',
   serviceExpire: 60, serviceRenew: 15, serviceCapacity: 10,
   messageExpire: 60, messageTimeout: 10, messageCapacity: 1000,
};
"""
KILL = """id=`redis-cli lrange demo:mpush:ids -1 -1`
pid=`redis-cli hget demo:mpush:$id pid`
kill $pid"""
CLIENTS = {"redis-cli": shutil.which("redis-cli"), "penstock redis": f"{sys.executable} -m penstock redis"}
Shell = Callable[[str], str]


@pytest.fixture(params=CLIENTS)
def shell(request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path: Path) -> Shell:
    """Return a function that runs a line on a terminal, ``redis-cli`` on this server, and returns what is shown."""
    client = CLIENTS[request.param]
    if client is None:
        pytest.skip("no redis-cli on this machine")
    wrapper = tmp_path / "bin" / "redis-cli"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {client} -p {server.port} "$@"\n')
    wrapper.chmod(0o755)
    environment = {**os.environ, "PATH": f"{wrapper.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def run(lines: str) -> str:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(["bash", "-c", lines], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # EIO on Linux: no writer is left
            pass
        os.close(ours)
        assert process.wait(60) == 0, shown
        return shown.replace(b"\r\n", b"\n").decode()

    return run


@pytest.fixture
def connected(redis: Any, server: EmbeddedServer) -> Iterator["Redis"]:
    with Redis(port=server.port) as client:
        yield client


class Mpush:
    """A run of ``propsFile=... python -m services.mpush`` that waits for messages."""

    def __init__(self, props: str, directory: Path, server: EmbeddedServer, connected: "Redis") -> None:
        file, self._log = directory / "mpush-redis.js", directory / "log"
        file.write_text(props.replace("6379", str(server.port)))
        line = f"exec env propsFile={file} {sys.executable} -m services.mpush"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(line, shell=True, cwd=ROOT, stdout=log, stderr=log)
        until(lambda: connected.info("clients")["blocked_clients"])

    def status(self) -> int:
        return self._process.wait(60)

    def said(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def demo(tmp_path: Path, server: EmbeddedServer, connected: "Redis") -> Iterator[Mpush]:
    started = Mpush(DEMO, tmp_path, server, connected)
    yield started
    started.end()


@pytest.fixture
def ninth(tmp_path: Path, server: EmbeddedServer, connected: "Redis") -> Iterator[Mpush]:
    """Yield the ninth instance of the namespace, as in the README."""
    connected.set("demo:mpush:id", 8)
    started = Mpush(REGISTERED, tmp_path, server, connected)
    yield started
    started.end()


def delivered(shell: Shell, connected: "Redis") -> None:
    assert shell("redis-cli lpush demo:mpush:in one") == "(integer) 1\n"
    until(lambda: connected.exists("demo:mpush:out0", "demo:mpush:out1") == 2)
    assert shell("redis-cli lrange demo:mpush:out0 0 -1") == '1) "one"\n'
    assert shell("redis-cli lrange demo:mpush:out1 0 -1") == '1) "one"\n'
    assert shell("redis-cli llen demo:mpush:pending") == "(integer) 0\n"


def test_a_message_is_pushed_to_both_lists(shell: Shell, demo: Mpush, connected: "Redis") -> None:
    delivered(shell, connected)
    assert sorted(connected.keys()) == [b"demo:mpush:out0", b"demo:mpush:out1"]


def test_a_registered_service_delivers_as_well_and_its_registration_is_there_to_look_at(
    shell: Shell, ninth: Mpush, connected: "Redis"
) -> None:
    delivered(shell, connected)
    fields = '1) "host"\n2) "pid"\n3) "started"\n4) "renewed"\n'
    assert shell("redis-cli hkeys demo:mpush:9").startswith(fields)
    assert shell("redis-cli lrange demo:mpush:ids -1 -1") == '1) "9"\n'
    assert shell("redis-cli exists demo:mpush:9") == "(integer) 1\n"
    assert 30 < int(shell("redis-cli ttl demo:mpush:9").removeprefix("(integer) ")) <= 60  # renewed every 15 s


def test_the_service_is_stopped_by_its_pid(shell: Shell, ninth: Mpush, connected: "Redis") -> None:
    assert shell(KILL) == ""
    assert ninth.status() == 0
    assert not connected.exists("demo:mpush:9", "demo:mpush:ids")
    assert '"del": 1, "lrem": 1' in ninth.said()


def test_the_service_is_stopped_by_deleting_its_key(shell: Shell, ninth: Mpush, connected: "Redis") -> None:
    assert shell("redis-cli del demo:mpush:9") == "(integer) 1\n"
    shell("redis-cli lrem demo:mpush:ids -1 9")
    assert ninth.status() == 0
    assert not connected.exists("demo:mpush:9", "demo:mpush:ids")


def test_stale_ids_are_removed_at_startup(
    shell: Shell, tmp_path: Path, server: EmbeddedServer, connected: "Redis"
) -> None:
    assert shell("redis-cli lpush demo:mpush:ids 8") == "(integer) 1\n"
    connected.set("demo:mpush:id", 8)
    mpush = Mpush(REGISTERED, tmp_path, server, connected)
    assert shell("redis-cli lrange demo:mpush:ids 0 -1") == '1) "9"\n'
    mpush.end()
