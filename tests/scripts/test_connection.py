"""Connections by URL: every scheme, and no password in any text."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ConnectionError, MovedError, TimeoutError

from penstock.base.log import Log
from penstock.base.ports import free_port
from penstock.core.certificates import authorities
from penstock.core.connection import connect, follow, mask_password, return_home
from penstock.testing.server import EmbeddedServer
from tests.support.harness import Service, eventually
from tests.support.tls import certificate, encrypted, name_by_subject, needs_openssl


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host", "redis://host"),
        ("redis://host:6379/1", "redis://host:6379/1"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://user:secret@host:6379/1", "redis://user:***@host:6379/1"),
        ("rediss://user:se:cr@et@host", "rediss://user:***@host"),
        ("redis://user:sec%40ret@[::1]:6379", "redis://user:***@[::1]:6379"),
        ("redis+sentinel://user:secret@a:1,b:2/service?db=1", "redis+sentinel://user:***@a:1,b:2/service?db=1"),
        ("unix://user:secret@/run/redis.sock?db=1", "unix://user:***@/run/redis.sock?db=1"),
        ("unix:///run/redis.sock?db=1&password=secret", "unix:///run/redis.sock?db=1&password=***"),
        ("redis://host/0?password=secret&db=2", "redis://host/0?password=***&db=2"),
        ("redis://host/0?PassWord=secret", "redis://host/0?PassWord=***"),
        ("redis://user:@host", "redis://user:***@host"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert mask_password(url) == shown
    assert "secret" not in shown


async def ping(url: str) -> Any:
    async with connect(url) as redis:
        await redis.set("key", "value")
        return await redis.get("key")


async def test_a_database_is_named_by_the_path(redis: Redis, server: EmbeddedServer) -> None:
    assert await ping(f"redis://127.0.0.1:{server.port}/3") == b"value"
    assert not await redis.exists("key")
    async with connect(f"redis://127.0.0.1:{server.port}/3") as third:
        assert await third.delete("key") == 1


async def test_a_unix_socket_is_reached(tmp_path: Path) -> None:
    with EmbeddedServer(unixsocket=str(tmp_path / "s")):
        assert await ping(f"unix://{tmp_path}/s?db=2") == b"value"


async def test_a_redirect_target_that_is_gone_is_given_up_for_the_node_of_the_url(redis_url: str) -> None:
    async with connect(redis_url) as client:
        await follow(MovedError(f"0 127.0.0.1:{free_port()}"), client)
        with pytest.raises(ConnectionError):
            await client.ping()
        await return_home(client)
        assert await client.ping()


async def test_a_user_and_a_password_with_awkward_characters_are_accepted(tmp_path: Path) -> None:
    with EmbeddedServer(unixsocket=str(tmp_path / "s")) as server:
        async with connect(server.url) as client:
            await client.config_set("requirepass", "p@ss:/w#rd %")
        login = ":p%40ss%3A%2Fw%23rd%20%25@"
        assert await ping(f"redis://{login}127.0.0.1:{server.port}") == b"value"
        assert await ping(f"redis://default{login}127.0.0.1:{server.port}") == b"value"
        assert await ping(f"unix://{login}{tmp_path}/s") == b"value"
        with pytest.raises(AuthenticationError):
            await ping(server.url)


@needs_openssl
async def test_tls_is_spoken_and_the_certificate_is_verified(server: EmbeddedServer, tmp_path: Path) -> None:
    own = certificate(tmp_path / "own", "491231")
    async with encrypted(server.port, own) as port:
        assert await ping(f"rediss://localhost:{port}/0?ssl_ca_certs={own}") == b"value"
        with pytest.raises(ConnectionError, match="certificate verify failed"):
            await ping(f"rediss://localhost:{port}/0")


@needs_openssl
@pytest.mark.parametrize("named_by", ["ssl_ca_certs", "ssl_ca_path", "SSL_CERT_FILE"])
async def test_a_renewed_authority_is_read_by_the_next_connection(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_by: str
) -> None:
    old, own = (certificate(tmp_path / name, "491231") for name in ("old", "own"))
    trusted = tmp_path / "trusted" / name_by_subject(own)
    trusted.parent.mkdir()
    shutil.copy(old, trusted)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted if named_by == "SSL_CERT_FILE" else tmp_path / "none"))
    options = {"ssl_ca_certs": f"?ssl_ca_certs={trusted}", "ssl_ca_path": f"?ssl_ca_path={trusted.parent}"}
    trust = authorities(str(trusted), Log("penstock.test"))
    read = trust.latest()
    async with (
        encrypted(server.port, old) as before,
        encrypted(server.port, own) as port,
        connect(f"rediss://localhost:{before}/0{options.get(named_by, '')}") as client,
    ):
        assert await client.ping()
        await follow(MovedError(f"1 localhost:{port}"), client)
        with pytest.raises(ConnectionError, match="certificate verify failed"):
            await client.ping()
        assert trust.latest() is read
        shutil.copy(own, tmp_path / "new")
        (tmp_path / "new").replace(trusted)
        assert await client.ping()
    renewed = trust.latest()
    assert renewed is not read
    trusted.write_text("half")
    assert trust.latest() is renewed


async def test_one_connection_serves_many_that_ask_at_once(redis: Redis, redis_url: str) -> None:
    async with connect(redis_url, name="only") as client:
        assert len(await asyncio.gather(*(client.incr("n") for _ in range(50)))) == 50
        assert [each["name"] for each in await redis.client_list()].count("only") == 1


async def test_a_command_whose_reply_was_lost_is_never_sent_again(redis: Redis, redis_url: str) -> None:
    """A BLMOVE that is sent twice takes two messages."""
    async with connect(redis_url, name="taker") as client:
        taking = asyncio.ensure_future(client.blmove("in", "pending", 0, "RIGHT", "LEFT"))
        while not (await redis.info("clients"))["blocked_clients"]:
            await asyncio.sleep(0.005)
        (taker,) = [each["id"] for each in await redis.client_list() if each["name"] == "taker"]
        await redis.client_kill_filter(_id=taker)
        with pytest.raises(ConnectionError):
            await taking
    await redis.lpush("in", "one")
    assert await redis.llen("pending") == 0


@pytest.mark.parametrize("turns", range(12))
async def test_a_task_can_be_cancelled_at_any_moment_of_a_command(redis_url: str, turns: int) -> None:
    async with connect(redis_url) as client:
        await client.ping()
        asking = asyncio.create_task(_echoed(client, "lost"))
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled() is cancelled
        assert await client.echo("mine") == b"mine"


async def _echoed(client: Redis, word: str) -> object:
    return await client.echo(word)


async def test_commands_of_a_cancelled_task_get_replies(redis_url: str) -> None:
    async with connect(redis_url) as client:

        async def work() -> object:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return await client.echo("bye")

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == b"bye"


async def test_a_silent_server_counts_as_lost(redis: Redis, redis_url: str) -> None:
    async with connect(redis_url, silence=0.1) as client:
        with pytest.raises(TimeoutError):
            await client.blpop(["nothing"], 0)


async def test_a_service_works_through_a_unix_socket(tmp_path: Path) -> None:
    with EmbeddedServer(unixsocket=str(tmp_path / "s")) as server:
        names = {"in": "in", "pending": "pending", "out": ["a", "b"]}
        with Service("mpush", tmp_path / "log", redis=f"unix://{tmp_path}/s?db=1", **names) as mpush:
            async with connect(f"redis://127.0.0.1:{server.port}/1") as client:
                await client.lpush("in", "one")
                await eventually(lambda: client.llen("a"))
                assert await client.rpop("a") == b"one"
            assert mpush.stop() == 0
