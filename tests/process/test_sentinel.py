"""A service finds its server through Sentinel, and the new one after a failover."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import AuthenticationError, ConnectionError

from penstock.core.connection import connect, mask_password
from penstock.testing.server import EmbeddedServer
from tests.support.harness import Service, eventually
from tests.support.servers import sentinel
from tests.support.tls import certificate, encrypted, needs_openssl


@asynccontextmanager
async def asking(port: int, login: str = "") -> AsyncIterator["Redis"]:
    async with connect(f"redis://{login}127.0.0.1:{port}") as client:

        async def answers() -> bool:
            try:
                return bool(await client.ping())
            except ConnectionError:
                return False

        await eventually(answers)
        yield client


async def test_the_sentinels_name_the_server(tmp_path: Path) -> None:
    """The first sentinel is down, and the server has a password."""
    with EmbeddedServer(requirepass="p@ss") as server, sentinel(tmp_path, server.port, "p@ss") as port:
        async with asking(port), connect(f"redis+sentinel://:p%40ss@127.0.0.1:1,127.0.0.1:{port}/mine?db=2") as client:
            assert await client.set("key", "value")
            assert (await client.client_info())["db"] == 2
            assert await client.config_get("port") == {"port": str(server.port)}


async def test_a_service_goes_on_with_the_new_server_after_a_failover(tmp_path: Path) -> None:
    quick: dict[str, Any] = {"repl_diskless_sync_delay": "0"}
    with EmbeddedServer(**quick) as first, EmbeddedServer(**quick, replicaof=("127.0.0.1", str(first.port))) as second:
        async with connect(first.url) as old, connect(second.url) as new:

            async def in_step() -> bool:
                info = await old.info("replication")
                return bool(info.get("slave0", {}).get("state") == "online")

            await eventually(in_step)
            with sentinel(tmp_path, first.port) as port, Service(
                "mpush", tmp_path / "log", redis=f"redis+sentinel://127.0.0.1:{port}/mine",
                redis_namespace="demo", in_="in", pending="pending", out=["a", "b"],
            ) as mpush:  # fmt: skip
                await old.lpush("in", "one")
                assert await old.blpop(["a"], 10) == (b"a", b"one")
                async with asking(port) as watcher:

                    async def knows_the_replica() -> bool:
                        return len(await watcher.execute_command("SENTINEL", "REPLICAS", "mine")) == 1

                    await eventually(knows_the_replica)
                    assert await old.wait(1, 5000) == 1
                    first.kill()

                    async def leads() -> bool:
                        try:
                            return bool((await new.info("replication"))["role"] == "master")
                        except ConnectionError:  # the sentinel closes all connections to the server that it promotes
                            return False

                    await eventually(leads)
                await new.lpush("in", "two")
                assert await new.brpoplpush("a", "seen", 15) == b"two"
                assert await new.lrange("b", 0, -1) == [b"two", b"one"]
                assert mpush.stop() == 0
            assert not await new.exists("demo:ids")


OWN_LOGIN = "requirepass d3fault", "user asker on >s3ntinel ~* &* +@all"


@pytest.mark.parametrize("login", ["sentinel_password=d3fault", "sentinel_username=asker&sentinel_password=s3ntinel"])
async def test_sentinels_may_have_a_password_and_a_user_of_their_own(tmp_path: Path, login: str) -> None:
    with EmbeddedServer(requirepass="p@ss") as server, sentinel(tmp_path, server.port, "p@ss", *OWN_LOGIN) as port:
        async with asking(port, ":d3fault@"):
            pass
        url = f"redis+sentinel://:p%40ss@127.0.0.1:{port}/mine"
        async with connect(f"{url}?{login}") as client:
            assert await client.config_get("port") == {"port": str(server.port)}
        for wrong in ("", "?sentinel_password=other"):
            async with connect(url + wrong) as client:
                with pytest.raises((AuthenticationError, MasterNotFoundError)):
                    await client.ping()
    shown = mask_password(f"{url}?{login}")
    assert not any(secret in shown for secret in ("p%40ss", "d3fault", "s3ntinel"))


@needs_openssl
@pytest.mark.parametrize("sentinels", ["with TLS", "without"])
async def test_servers_and_sentinels_speak_tls(tmp_path: Path, sentinels: str) -> None:
    """The sentinel gives the host and port of the server's TLS proxy; both certificates are verified."""
    own, other = (certificate(tmp_path / name, last_day="491231") for name in ("own", "other"))
    named = "sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"
    with EmbeddedServer() as server:
        async with encrypted(server.port, own) as secure:
            # The sentinel itself speaks no TLS, so it must not report the server as down during the test.
            with sentinel(tmp_path, secure, "", *named, host="localhost", down_after=600_000) as plain:
                async with asking(plain), encrypted(plain, own) as port:
                    place, more = (port, "") if sentinels == "with TLS" else (plain, "sentinel_ssl=false&")
                    url = f"rediss+sentinel://localhost:{place}/mine?{more}ssl_ca_certs="
                    async with connect(f"{url}{own}") as client:
                        assert await client.config_get("port") == {"port": str(server.port)}
                    async with connect(f"{url}{other}") as client:
                        with pytest.raises(ConnectionError):
                            await client.ping()
