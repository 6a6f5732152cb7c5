"""The exporter's HTTP server: its responses with and without Redis, its start and its end."""

import asyncio
import ctypes
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import structlog
from redis.asyncio import Redis
from redis.exceptions import ReadOnlyError

from penstock.base.ports import free_port
from penstock.core.connection import connect
from penstock.core.link import Outage
from penstock.testing.server import EmbeddedServer
from services.monitor import exporter as module
from services.monitor.exporter import CannotListen, Exporter
from services.monitor.service import Monitor
from services.monitor.state import NamespaceState
from tests.scripts.scrape import OPENMETRICS, Scrape, answer_of, exporting, get, policy, scrape
from tests.support.harness import PATIENCE


async def test_metrics_come_in_the_format_that_is_asked_for(redis: Redis) -> None:
    await policy(redis)
    async with exporting(redis) as exporter:
        plain = await get(exporter, "/metrics")
        assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
        newer = await get(exporter, "/metrics", accept=OPENMETRICS)
        assert newer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert newer.text.endswith("# EOF\n")
        packed = await get(exporter, "/metrics", accept_encoding="gzip")
        assert packed.headers["content-encoding"] == "gzip"
        names = [Scrape(answer).names for answer in (plain, newer, packed)]
        assert names[0] == names[1] == names[2]


async def test_a_scrape_may_ask_for_some_series_only(redis: Redis) -> None:
    await policy(redis)
    async with exporting(redis) as exporter:
        found = Scrape(await get(exporter, "/metrics?name[]=penstock_up&name[]=penstock_in_flight"))
    assert found.names == {"penstock_up", "penstock_in_flight"}


async def test_every_family_has_a_help_that_is_a_sentence_and_its_unit(redis: Redis) -> None:
    await policy(redis)
    async with exporting(redis) as exporter:
        found = await scrape(exporter, accept=OPENMETRICS)
    ours = {name: family for name, family in found.families.items() if name.startswith("penstock_")}
    assert len(ours) > 20
    for name, family in ours.items():
        assert family.documentation[0].isupper() or family.documentation[0].isdigit(), name
        assert family.documentation.endswith("."), name
        assert (family.unit == "seconds") == name.endswith("_seconds") == ("Seconds" in family.documentation), name


async def test_the_process_exports_metrics_of_its_own(redis: Redis) -> None:
    async with exporting(redis) as exporter:
        found = await scrape(exporter)
    assert {"process_resident_memory_bytes", "process_cpu_seconds_total", "python_info"} <= found.names


async def test_while_redis_is_away_metrics_are_answered_and_it_is_not_ready(redis_url: str) -> None:
    with EmbeddedServer() as server:
        async with connect(server.url) as client, exporting(client, "demo", "other") as exporter:
            assert (await scrape(exporter))("up") == 1
            assert (await get(exporter, "/ready")).status == 200
            server.kill()
            found = await scrape(exporter)
            assert (found("up"), found("up", namespace="other")) == (0, 0)
            assert {name for name in found.names if name.startswith("penstock_")} == {"penstock_up"}
            assert "process_resident_memory_bytes" in found.names
            ready = await get(exporter, "/ready")
            assert ready.status == 503
            assert ready.text.startswith("cannot read from Redis: ")
            assert (await get(exporter, "/live")).status == 200
            server.start()
            assert (await scrape(exporter))("up") == 1
            assert (await get(exporter, "/ready")).status == 200


async def test_a_redis_that_does_not_answer_holds_up_no_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped server accepts connections but never replies."""
    with EmbeddedServer() as server:
        async with connect(server.url, silence=3600) as client, exporting(client) as exporter:
            assert (await scrape(exporter))("up") == 1
            monkeypatch.setattr(module, "SCRAPE_SECONDS", 0.3)
            os.kill(server.pid, signal.SIGSTOP)
            assert (await scrape(exporter))("up") == 0
            ready = await get(exporter, "/ready")
            assert (ready.status, ready.text) == (503, "no answer within 0.3 s\n")
            os.kill(server.pid, signal.SIGCONT)
            monkeypatch.undo()
            assert (await scrape(exporter))("up") == 1, "what was given up must not be taken for the next answer"


async def test_a_reading_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCRAPE_SECONDS", 0.1)
    given_up = asyncio.Event()

    async def endless(_: object) -> list[NamespaceState]:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()
        return []

    async with Exporter(0, "127.0.0.1", ["demo"], endless, lambda: None) as exporter:
        assert (await scrape(exporter))("up") == 0
        await asyncio.wait_for(given_up.wait(), PATIENCE)


async def test_a_refusal_by_redis_is_shown_by_ready(redis: Redis, redis_url: str) -> None:
    await redis.hset("demo:lists", "in", "in")
    await redis.acl_setuser("watcher", enabled=True, nopass=True, keys=["demo:*"], categories=["+@all"])
    try:
        async with connect(redis_url.replace("//", "//watcher:any@")) as client, exporting(client) as exporter:
            assert (await scrape(exporter))("up") == 0
            assert "no permissions to access" in (await get(exporter, "/ready")).text.casefold()
    finally:
        await redis.acl_deluser("watcher")


async def test_a_service_that_does_not_do_its_work_is_not_ready(redis: Redis) -> None:
    problem: str | None = "waiting: You can't write against a read only replica."
    async with exporting(redis, why_not_ready=lambda: problem) as exporter:
        answer = await get(exporter, "/ready")
        assert (answer.status, answer.text) == (503, f"{problem}\n")
        problem = None
        answer = await get(exporter, "/ready")
        assert (answer.status, answer.text) == (200, "ok\n")


def test_a_monitor_that_waits_says_why_as_its_health_file_does() -> None:
    monitor, outage = Monitor(), Outage(structlog.get_logger())
    assert monitor._problem() == "the service does not do its work"
    monitor._outage, monitor._swept_at = outage, time.monotonic()
    assert monitor._problem() is None
    outage.begins(ReadOnlyError("You can't write against a read only replica."))
    assert monitor._problem() == "waiting: You can't write against a read only replica."


async def test_a_stuck_event_loop_is_not_live_and_metrics_are_answered_all_the_same(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with exporting(redis) as exporter:
        assert (await get(exporter, "/live")).status == 200
        monkeypatch.setattr(module, "LIVE_SECONDS", 0.2)
        monkeypatch.setattr(module, "SCRAPE_SECONDS", 0.2)
        live, metrics = (answer_of(exporter, path) for path in ("/live", "/metrics"))  # blocks the event loop
    assert (live.status, live.text) == (503, "no answer within 0.2 s\n")
    assert Scrape(metrics)("up") == 0


async def test_a_process_that_stood_still_is_live(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIVE_SECONDS", 0.5)
    async with exporting(redis) as exporter:
        asked = asyncio.get_running_loop().run_in_executor(None, answer_of, exporter, "/live")
        stand_still(module.LIVE_SECONDS + 0.1)
        assert (await asked).status == 200


def stand_still(seconds: float) -> None:
    """Stop all threads, as a busy machine does; others run shortly before and after."""
    time.sleep(0.2)  # timing: time to ask before rather than after
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))  # holds the global interpreter lock
    time.sleep(0.05)  # timing: time to give up wrongly


async def test_a_path_that_is_none_of_the_three_is_not_found(redis: Redis) -> None:
    async with exporting(redis) as exporter:
        for path in ("/", "/metrics/", "/favicon.ico"):
            answer = await get(exporter, path)
            assert (answer.status, answer.text) == (404, "there are /metrics, /live and /ready\n")


async def test_a_port_that_is_taken_is_named_with_what_to_do(redis: Redis) -> None:
    async with exporting(redis) as exporter:
        with pytest.raises(CannotListen, match=rf"^port {exporter.port} is taken: set metricsPort$"):
            async with exporting(redis, port=exporter.port):
                pass
        with pytest.raises(CannotListen, match=r"is taken"):
            async with exporting(redis, port=exporter.port, host="0.0.0.0"):
                pass


@pytest.mark.parametrize("host", ["203.0.113.1", "no.such.host.invalid"])
async def test_a_host_that_is_not_here_is_named_with_what_to_do(redis: Redis, host: str) -> None:
    with pytest.raises(CannotListen, match=rf"^cannot listen on {host} port 0: .*: set metricsHost or metricsPort$"):
        async with exporting(redis, host=host):
            pass


async def test_it_starts_without_asking_a_resolver(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver may take half a minute if the name server is down."""
    monkeypatch.setattr(socket, "getfqdn", lambda _: pytest.fail("asked for the host's name"))
    async with exporting(redis, host="0.0.0.0") as exporter:
        assert (await get(exporter, "/live")).status == 200


async def test_it_listens_on_ipv6_too(redis: Redis) -> None:
    async with exporting(redis, host="::1") as exporter:
        assert (await get(exporter, "/live", host="::1")).status == 200


async def test_it_ends_at_once_and_leaves_the_port_to_the_next(redis: Redis) -> None:
    port = free_port()
    for _ in range(3):
        async with exporting(redis, port=port) as exporter:
            assert exporter.port == port
            assert (await scrape(exporter))("up") == 1
        with pytest.raises(ConnectionRefusedError):
            await get(exporter, "/live")
    assert "exporter" not in {thread.name for thread in threading.enumerate()}


async def test_a_client_that_says_nothing_holds_up_neither_others_nor_the_end(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module._Handler, "timeout", 3600)
    async with exporting(redis) as exporter:
        with socket.create_connection(("127.0.0.1", exporter.port)):
            assert (await scrape(exporter))("up") == 1
            await asyncio.wait_for(exporter.__aexit__(), PATIENCE)


async def test_clients_that_drip_use_a_bounded_number_of_files_and_keep_no_scraper_out(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes the place of the oldest one; a new connection to Redis finds a file."""
    assert module.MAX_CONNECTIONS < 1_000
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 10)
    monkeypatch.setattr(module._Handler, "timeout", 3600)
    before = open_files()
    async with exporting(redis) as exporter:
        with ExitStack() as stack:
            clients = []
            for _ in range(4 * module.MAX_CONNECTIONS):
                client = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", exporter.port), PATIENCE)
                stack.enter_context(client)
                client.sendall(b"GET /metrics HTTP/1.0\r\nx:")
                clients.append(client)
            for client in clients[: -module.MAX_CONNECTIONS]:
                assert await asyncio.to_thread(_ends, client)
            assert (await scrape(exporter))("up") == 1
            ours = open_files() - before - len(clients)
            assert ours <= module.MAX_CONNECTIONS + 20
            async with connect(redis_url) as other:
                assert await other.ping()


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def _ends(client: socket.socket) -> bool:
    """Wait until the other side has closed."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


async def test_nothing_is_printed_for_a_scrape_nor_for_a_client_that_goes_away(
    redis: Redis, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module._Handler.timeout == module.CLIENT_SECONDS
    monkeypatch.setattr(module._Handler, "timeout", 0.1)
    async with exporting(redis) as exporter:
        await scrape(exporter)
        await get(exporter, "/nowhere")
        for said in (b"", b"GET /metrics", b"GET /metrics HTTP/1.0\r\n\r\n"):
            await asyncio.to_thread(partial(_go_away, exporter.port, said))
        with socket.create_connection(("127.0.0.1", exporter.port)) as silent:
            assert await asyncio.to_thread(silent.recv, 1) == b"", "the connection of a silent client ends"
        await scrape(exporter)
    assert capfd.readouterr() == ("", "")


def _go_away(port: int, said: bytes) -> None:
    """Reset the connection."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.sendall(said)
