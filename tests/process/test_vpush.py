"""vpush as a process between two servers."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.testing.server import EmbeddedServer
from tests.support.harness import Service, until
from tests.support.tls import certificate, encrypted, needs_openssl
from tests.support.vpush import KEYS, Line, logged, numbered

PASSWORD = "s3cr3t"
TIGHT: dict[str, Any] = {"batch": 1, "window": 1}
"""One message in flight at a time: the slowest settings."""


def waits(service: Service, words: str = "") -> bool:
    """Return True if the service has logged ``waiting`` with ``words`` in the reason."""
    return any(words in str(line["reason"]) for line in logged(service, "waiting"))


@pytest.fixture(scope="module")
def target() -> Iterator[EmbeddedServer]:
    """Yield the target for all tests that do not break it."""
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def line(server: EmbeddedServer, target: EmbeddedServer, tmp_path: Path) -> Iterator[Line]:
    with ExitStack() as ends:
        line = Line(server, target, tmp_path, ends)
        line.here.flushall()
        line.there.flushall()
        yield line


@pytest.fixture
def breakable(server: EmbeddedServer, tmp_path: Path) -> Iterator[Line]:
    """Yield a line to a target of the test's own."""
    with EmbeddedServer() as there, ExitStack() as ends:
        line = Line(server, there, tmp_path, ends)
        line.here.flushall()
        yield line


def test_a_message_that_is_pushed_here_is_there(line: Line) -> None:
    service = line.up()
    line.push([b"one"])
    line.until_arrived([b"one"])
    assert service.stop() == 0
    assert line.count("taken", "out") == line.count("delivered", "out") == 1
    assert line.here.lrange(KEYS.ids, 0, -1) == []
    source = line.here.hget(KEYS.sequence, "source").decode()
    assert line.here.hget(KEYS.sequence, "sequence") == b"1"
    assert line.there.hgetall(f"out:from:{source}").keys() == {b"token", b"sequence", b"first", b"digest", b"at"}
    assert sorted(line.there.keys()) == sorted([b"out", f"out:from:{source}".encode()])


def test_one_message_after_another_crosses_at_once(line: Line) -> None:
    line.up(**TIGHT, pop_timeout=30)
    for number, message in enumerate(messages := numbered(50)):
        line.push([message])
        until(lambda number=number: line.there.llen("out") == number + 1)  # type: ignore[misc]
    line.until_arrived(messages)


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "deletion"])
def test_a_stop_does_not_wait_for_what_is_left_and_the_next_one_goes_on(line: Line, way: str) -> None:
    messages = numbered(50_000)
    line.push(messages)
    service = line.up(**TIGHT, stop_timeout=10)
    until(lambda: line.there.llen("out") > 100)
    if way == "deletion":
        (id,) = line.here.lrange(KEYS.ids, 0, -1)
        line.here.delete(KEYS.instance(id.decode()))
    else:
        service.signal(getattr(signal, way))
    assert service.wait() == 0
    assert not line.settled()
    assert line.arrived() == messages[: line.there.llen("out")]
    assert line.count("delivered") == line.there.llen("out")
    line.up()
    line.until_arrived(messages)


def test_an_idle_one_stops_at_once(line: Line) -> None:
    service = line.up(pop_timeout=30, stop_timeout=10)
    line.push([b"one"])
    line.until_arrived([b"one"])
    assert service.stop() == 0


def test_a_batch_fenced_off_by_the_target_is_logged_and_sent_with_a_new_token(line: Line) -> None:
    service = line.up()
    line.push([b"one"])
    line.until_arrived([b"one"])
    source = line.here.hget(KEYS.sequence, "source").decode()
    line.there.hset(f"out:from:{source}", "token", 1_000_000)
    line.push([b"two"])
    line.until_arrived([b"one", b"two"])
    (fenced,) = logged(service, "fenced by the other server")
    assert fenced["key"] == f"out:from:{source}"
    assert logged(service, "lease lost") == []


@pytest.mark.parametrize("key", [KEYS.sequence, KEYS.link, KEYS.lease])
def test_a_key_of_the_wrong_type_here_is_named_and_waited_for(line: Line, key: str) -> None:
    line.here.set(key, "in the way")
    service = line.up()
    line.push(numbered(100))
    until(lambda: waits(service, f"{key} holds a string, expected a hash"))
    line.here.delete(key)
    line.until_arrived(numbered(100))


def test_an_idle_connection_that_the_other_server_closes_is_no_outage(line: Line) -> None:
    """Servers with ``timeout``, proxies and firewalls close it."""
    service = line.up()
    for number in range(3):
        line.push(numbered(1, number))
        line.until_arrived(numbered(number + 1))
        until(lambda: line.here.llen("pending") == 0)
        for client in line.there.client_list():
            if client["name"] == "penstock-vpush":
                line.there.client_kill_filter(_id=client["id"])
        until(lambda: "penstock-vpush" not in {client["name"] for client in line.there.client_list()})
    line.push(numbered(300, 3))
    line.until_arrived(numbered(303))
    assert logged(service, "waiting") == []


def test_a_wrong_password_is_logged_and_waited_for(breakable: Line) -> None:
    there = breakable.there
    there.config_set("requirepass", "another")
    there.auth("another")
    port = there.connection_pool.connection_kwargs["port"]
    service = breakable.up(out_redis=f"redis://:{PASSWORD}@127.0.0.1:{port}/0")
    breakable.push(numbered(100))
    until(lambda: waits(service, "the other server: invalid username-password pair"))
    assert breakable.here.llen("in") == 100
    there.config_set("requirepass", PASSWORD)
    breakable.until_arrived(numbered(100))
    assert PASSWORD not in service.log_text()


def test_a_user_there_with_just_the_rights_that_are_documented_suffices(breakable: Line) -> None:
    transaction = "+multi +exec +exists +rpush +lpushx +rpop +renamenx"
    rights = f"+eval +evalsha +script|load +type +lpush +hset +hmget +time +client|setname {transaction}"
    allowed = f"on >{PASSWORD} ~out ~out:from:* {rights}".split()
    breakable.there.execute_command("ACL", "SETUSER", "sender", *allowed)
    port = breakable.there.connection_pool.connection_kwargs["port"]
    service = breakable.up(out_redis=f"redis://sender:{PASSWORD}@127.0.0.1:{port}/0")
    breakable.push(numbered(1_000))
    breakable.until_arrived(numbered(1_000))
    assert logged(service, "waiting") == []


@needs_openssl
@pytest.mark.parametrize(
    ("last_day", "trusted", "reason"),
    [("491231", "another", "certificate verify failed"), ("200102", "own", "certificate has expired")],
    ids=["wrong CA", "expired"],
)
async def test_an_untrusted_certificate_is_logged_and_nothing_is_lost(
    line: Line, target: EmbeddedServer, tmp_path: Path, last_day: str, trusted: str, reason: str
) -> None:
    own, another = certificate(tmp_path / "own", last_day), certificate(tmp_path / "another", "491231")
    line.push(numbered(100))
    async with encrypted(target.port, own) as port:
        shown = own if trusted == "own" else another
        service = line.up(out_redis=f"rediss://localhost:{port}/0?ssl_ca_certs={shown}")
        await asyncio.to_thread(until, lambda: waits(service, reason))
        assert line.here.llen("in") == 100
        assert await asyncio.to_thread(service.stop) == 0
        assert len(logged(service, "waiting")) == 1
    assert line.arrived() == []
    async with encrypted(target.port, another) as port:
        service = line.up(out_redis=f"rediss://localhost:{port}/0?ssl_ca_certs={another}")
        await asyncio.to_thread(line.until_arrived, numbered(100))
        assert await asyncio.to_thread(service.stop) == 0
