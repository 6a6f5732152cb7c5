"""A producer with an outbox is killed while its server comes and goes: what it had accepted arrives in order, once."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from penstock.bus import Bus
from penstock.testing.server import EmbeddedServer
from tests.support.harness import ROOT, eventually, until

pytestmark = pytest.mark.slow
KILLS = 12


def test_kills_of_producer_and_server_lose_and_double_nothing(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    told, datadir = tmp_path / "accepted", tmp_path / "outbox"
    told.touch()
    is_up = True

    def accepted() -> list[int]:
        return [int(line) for line in told.read_text().split("\n")[:-1]]

    def more() -> None:
        """Wait until some more have been accepted."""
        enough = len(accepted()) + chance.randrange(5, 100)
        until(lambda: len(accepted()) > enough)

    def toggle() -> None:
        nonlocal is_up
        (server.kill if is_up else server.start)()
        is_up = not is_up

    with EmbeddedServer(aof=True) as server:
        for _ in range(KILLS):
            command = [sys.executable, "-m", "tests.bus.pusher", server.url, str(datadir), str(tmp_path)]
            producer = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
            try:
                for _ in range(chance.randrange(1, 4)):
                    more()
                    toggle()
                more()
            finally:
                producer.kill()
                producer.wait()
            if chance.random() < 0.3:
                toggle()
        if not is_up:
            toggle()

        async def deliver() -> None:
            async with Bus(server.url, outbox=datadir) as bus:
                await eventually(lambda: not bus.waiting)

        asyncio.run(deliver())
        with Redis.from_url(server.url) as redis:
            found = [int(each) for each in redis.lrange("bus:queue:orders:messages", 0, -1)[1::2]]
    assert found == sorted(set(found))
    assert set(accepted()) <= set(found) <= set(range(int((tmp_path / "begun").read_text())))
    assert len(found) > 100
