"""Workers and producers are killed under load, and the server with them: every job ends once in every group."""

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis

from penstock.jobs import Jobs
from penstock.testing.server import EmbeddedServer
from tests.jobs.killed import GROUPS, outcome
from tests.jobs.load import WORKERS, Load, each_has_ended_once, is_through
from tests.support.harness import eventually, rounds

pytestmark = pytest.mark.slow


async def test_every_job_ends_once_in_every_group_whoever_is_killed(tmp_path: Path) -> None:
    moments = random.Random()
    with EmbeddedServer(aof=True) as server:
        load = Load(server.url, tmp_path)
        try:
            for number in rounds():
                victim = moments.randrange(WORKERS)
                await eventually(partial(load.works, victim), 60)
                await asyncio.sleep(moments.uniform(0, 0.1))
                if number % 7 == 3:
                    server.kill()
                    await asyncio.sleep(moments.uniform(0, 0.2))
                    server.start()
                if number % 4 == 1:
                    await eventually(lambda: load.keep_up() and load.producer.lines("sent"), 60)
                    load.kill_producer()
                load.replace(victim)
            await eventually(lambda: load.keep_up() and load.producer.lines("sent"), 60)
            load.producer.kill()
            load.note_sent()
            async with Redis.from_url(server.url) as redis:
                await eventually(lambda: load.keep_workers() and is_through(redis), 40)
                await each_has_ended_once(redis, load)
            async with Jobs(server.url) as jobs:
                for each in moments.sample(sorted(load.sent), 5):
                    found = await jobs.producer("P").finished("s", f"J{each}", GROUPS, 10, since=0)
                    for group in GROUPS:
                        assert (found[group].error is None) == (outcome(group, each) == "done")
        finally:
            load.end()
