"""Completions of Node's consumers, which only pub/sub carries, are kept for producers that are away. HB-D05."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from penstock.jobs import Attempt, Consumer, FinishTimeout, Jobs, Rejected
from penstock.jobs.errors import MAX_MESSAGE
from penstock.jobs.keys import JobKeys
from penstock.jobs.recorder import MAX_BYTES
from services.worker.settings import Settings
from tests.jobs.given import consumer, kept, working
from tests.support.harness import PATIENCE, eventually

NAME = "penstock-jobs-keep"


@pytest.fixture
async def nodes(redis: Any) -> None:
    """Have a consumer of Node's in the group ``node`` of the stream ``s``, as its commands are in WIRE.md."""
    await redis.xgroup_create("hfxbus:str:s", "hfxbus:csr:node", "$", mkstream=True)
    await redis.xreadgroup("hfxbus:csr:node", "CONSUMER-1", {"hfxbus:str:s": ">"}, count=1)


async def publish(redis: Any, job: str, error: Any = None, stream: str = "s", group: str = "node") -> None:
    """Complete a job of the producer ``P`` as Node does."""
    message = {"str": stream, "grp": group, "job": job} | ({} if error is None else {"err": error})
    await redis.publish(f"hfxbus:chn:{stream}:P", json.dumps(message, separators=(",", ":")))


async def keepers(redis: Any) -> int:
    """Return how many listen."""
    found = [each["name"] for each in await redis.client_list(_type="pubsub")]
    return found.count(NAME)


def worker(group: str = "ours", stream: str = "s") -> Consumer:
    found = consumer(group)

    @found.job(stream)
    async def work(job: Attempt) -> None: ...

    return found


async def test_a_producer_that_was_away_hears_what_node_has_done_and_rejected(
    jobs: Jobs, redis: Any, nodes: None
) -> None:
    async with working(jobs, worker()):
        await eventually(lambda: keepers(redis))
        await publish(redis, "J1")
        await publish(redis, "J2", {"name": "Error", "message": "no"})
        await publish(redis, "J3", stream="another")
        await eventually(lambda: _are_kept(redis, 2))
    producer = jobs.producer("P")
    assert (await producer.finished("s", "J1", ["node"], PATIENCE))["node"].error is None
    with pytest.raises(Rejected, match="node: no"):
        await producer.finished("s", "J2", ["node"], PATIENCE, reject=True)
    with pytest.raises(FinishTimeout):
        await producer.finished("another", "J3", ["node"], 0.05)


async def _are_kept(redis: Any, many: int) -> bool:
    return len(await kept(redis)) >= many


async def test_a_producer_that_asks_before_it_is_kept_hears_it_afterwards(jobs: Jobs, redis: Any) -> None:
    message = '{"str":"s","grp":"node","job":"J1"}'
    waiting = asyncio.create_task(jobs.producer("P").finished("s", "J1", ["node"], 30))
    await eventually(lambda: _is_heard(redis, "hfxbus:chn:s:P"))
    await asyncio.sleep(0.2)  # timing: it asks before; if not, it hears it all the same
    await redis.xadd("hfxbus:done:s", {"job": "J1", "msg": message})
    assert set(await waiting) == {"node"}


async def _is_heard(redis: Any, channel: str) -> bool:
    return any(many for _, many in await redis.pubsub_numsub(channel))


async def test_each_is_kept_once_however_many_consumers_run_and_one_may_die(
    redis: Any, redis_url: str, nodes: None
) -> None:
    many = 300
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Jobs(redis_url)) for _ in range(4)]
        runs = [stack.enter_async_context(working(each, worker())) for each in clients]
        for run in runs:
            await run
        await eventually(lambda: _keepers_are(redis, 2))
        for number in range(many):
            await publish(redis, f"J{number}")
        await eventually(lambda: _are_kept(redis, many))
        await redis.xtrim("hfxbus:done:s", 0)
        [one, _] = [each for each in await redis.client_list(_type="pubsub") if each["name"] == NAME]
        await redis.client_kill_filter(_id=one["id"])
        for number in range(many):
            await publish(redis, f"K{number}", {"number": number})
        await eventually(lambda: _are_kept(redis, many))
        await eventually(lambda: _keepers_are(redis, 2))
        await publish(redis, "last")
        await eventually(lambda: _are_kept(redis, many + 1))
        await asyncio.sleep(0.2)  # timing: none may come twice
        found = sorted(each["job"] for each in await kept(redis))
        assert found == sorted([*(f"K{number}" for number in range(many)), "last"])
    await eventually(lambda: _keepers_are(redis, 0))
    assert not await redis.exists("hfxbus:keepers:s")


async def _keepers_are(redis: Any, many: int) -> bool:
    return await keepers(redis) == many


async def test_among_ours_alone_nobody_listens_and_what_ours_complete_is_kept_once(
    jobs: Jobs, redis: Any, redis_url: str
) -> None:
    async with working(jobs, worker()), Jobs(redis_url) as other, jobs.keeping("s"):
        await eventually(lambda: redis.exists("hfxbus:str:s"))
        assert not await redis.exists("hfxbus:keepers:s")
        sent = [await other.producer().send("s", wait_for=["ours"]) for _ in range(50)]
        for each in sent:
            await each.finished(PATIENCE)
        await publish(redis, "J1", group="node")
        await eventually(lambda: _are_kept(redis, 51))
        await asyncio.sleep(0.2)  # timing: none may come twice
        assert [each["job"] for each in await kept(redis)] == [*(each.job.id for each in sent), "J1"]
    await eventually(lambda: _keepers_are(redis, 0))


async def test_keeping_goes_on_after_the_connection_was_cut_and_ends_with_its_block(jobs: Jobs, redis: Any) -> None:
    async with jobs.keeping("s", "t"), jobs.keeping("s"):
        await redis.client_kill_filter(_type="pubsub")
        await eventually(lambda: _is_kept_once_published(redis, "s"))
        await eventually(lambda: _is_kept_once_published(redis, "t"))
        assert await keepers(redis) == 1
    await eventually(lambda: _keepers_are(redis, 0))
    async with jobs.keeping("s"):
        await publish(redis, "J2")
        await eventually(lambda: _are_kept(redis, 2))


async def _is_kept_once_published(redis: Any, stream: str) -> bool:
    await publish(redis, "J1", stream=stream)
    return bool(await redis.exists(f"hfxbus:done:{stream}"))


async def test_what_strangers_publish_is_bounded(jobs: Jobs, redis: Any) -> None:
    async with jobs.keeping("s"):
        for message in (b"", b"{", b"[]", b'{"str":"s"}', b'{"str":5,"grp":"g","job":"J0"}', b"\xff"):
            await redis.publish("hfxbus:chn:s:P", message)
        await publish(redis, "J1", {"name": "Error", "message": "x" * MAX_BYTES, "more": 1})
        await publish(redis, "J2", "y" * MAX_BYTES)
        await redis.publish("hfxbus:chn:s:P", '{"str":"s","grp":"node","job":"J3","err":undefined}')
        await eventually(lambda: redis.xlen("hfxbus:done:s"))
        producer = jobs.producer("P")
        found = [(await producer.finished("s", f"J{number}", ["node"], PATIENCE))["node"].error for number in (1, 2, 3)]
    assert found[0] == {"name": "Error", "message": "x" * MAX_MESSAGE, "code": ""}
    assert found[1]["message"] == "y" * MAX_MESSAGE
    assert found[2]["message"] == "the consumer has published no JSON"
    assert await redis.xlen("hfxbus:done:s") == 3


async def test_completions_are_kept_where_their_stream_is(two: Jobs, servers: list[Any]) -> None:
    async with two.keeping("a", "concat"):
        for place, stream in ((1, "a"), (0, "concat")):
            await publish(servers[place], "J1", stream=stream)
            found = await two.producer("P").finished(stream, "J1", ["node"], PATIENCE)
            assert found["node"].error is None
            await eventually(lambda place=place, stream=stream: servers[place].exists(f"hfxbus:done:{stream}"))  # type: ignore[misc]


def test_a_worker_may_listen_to_all_completions_whatever_its_prefix() -> None:
    """A server permits a pattern that it finds among the rights as it is."""
    given = {"redis": "redis://h", "redis_namespace": "n", "app": "a:b", "prefix": "my-app"}
    [rights] = Settings.model_validate(given).rights().values()
    assert JobKeys("my-app").channels in rights.channels
    assert "PSUBSCRIBE" in rights.commands
