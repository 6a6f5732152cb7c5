"""A service finds its server through Sentinel, and the next one when that is gone."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError

from penstock.connection import connect
from penstock.embedded import EmbeddedServer, binary, free_port
from tests.commandline import until
from tests.harness import Service


@contextmanager
def sentinel(directory: Path, server: EmbeddedServer, password: str = "") -> Iterator[int]:
    """A sentinel's port; it calls ``server`` by the name ``mine`` and finds its replicas."""
    port, configuration = free_port(), directory / "sentinel.conf"
    options = {"down-after-milliseconds": 300, "failover-timeout": 1000} | ({"auth-pass": password} if password else {})
    configuration.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\nsentinel monitor mine 127.0.0.1 {server.port} 1\n"
        + "".join(f"sentinel {name} mine {value}\n" for name, value in options.items())
    )
    process = subprocess.Popen([binary(), configuration, "--sentinel"], stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(10)


@asynccontextmanager
async def asking(port: int) -> AsyncIterator["Redis"]:
    async with connect(f"redis://127.0.0.1:{port}") as client:

        async def answers() -> bool:
            try:
                return bool(await client.ping())
            except ConnectionError:
                return False

        await until(answers)
        yield client


async def test_the_server_is_the_one_that_the_sentinels_name(tmp_path: Path) -> None:
    """The first of them is down, and the password is the server's."""
    with EmbeddedServer(requirepass="p@ss") as server, sentinel(tmp_path, server, "p@ss") as port:
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

            await until(in_step)
            with sentinel(tmp_path, first) as port, Service(
                "mpush", tmp_path / "log", redis=f"redis+sentinel://127.0.0.1:{port}/mine",
                redis_namespace="demo", in_="in", pending="pending", out=["a", "b"],
            ) as mpush:  # fmt: skip
                await old.lpush("in", "one")
                assert await old.blpop(["a"], 10) == (b"a", b"one")
                async with asking(port) as watcher:

                    async def knows_the_replica() -> bool:
                        return len(await watcher.execute_command("SENTINEL", "REPLICAS", "mine")) == 1

                    await until(knows_the_replica)
                    assert await old.wait(1, 5000) == 1
                    first.kill()

                    async def leads() -> bool:
                        try:
                            return bool((await new.info("replication"))["role"] == "master")
                        except ConnectionError:  # the sentinel ends every connection to the server that it promotes
                            return False

                    await until(leads)
                await new.lpush("in", "two")
                assert await new.brpoplpush("a", "seen", 15) == b"two"
                assert await new.lrange("b", 0, -1) == [b"two", b"one"]
                assert mpush.stop() == 0
            assert not await new.exists("demo:ids")
