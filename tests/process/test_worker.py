"""The service worker as processes: what it tells of its jobs, stops, reloads, kills, and the rights that it needs."""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from penstock.base.encoding import decoded
from penstock.jobs import Jobs
from services.worker.settings import Settings
from tests.support.commandline import penstock
from tests.support.harness import eventually
from tests.support.shop import GROUP, KEYS, STREAM, Shop, Worker, are_up, audited, is_gone, pids, write_app

CLAIM_AFTER: Final = 1.0


@pytest.fixture
async def shop(redis: "Redis", redis_url: str) -> AsyncIterator[Shop]:
    async with Jobs(redis_url) as jobs, jobs.producer().completions(STREAM) as heard:
        yield Shop(jobs, heard)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_app(tmp_path, "one")
    return tmp_path


async def read_jobs(redis: "Redis", many: int) -> bool:
    """Return whether so many consumers have asked for jobs."""
    if not await redis.exists(f"hfxbus:str:{STREAM}"):
        return False
    found: Any = await redis.xinfo_groups(f"hfxbus:str:{STREAM}")
    return [each["consumers"] for each in found] == [many]


async def test_status_audit_and_trace_know_its_jobs(redis: "Redis", redis_url: str, folder: Path, shop: Shop) -> None:
    with Worker(folder, redis_url) as service:
        done, failed = [*await shop.send(), *await shop.send(verb="fail")]
        assert (await failed.finished(60))[GROUP].error == {"name": "ValueError", "message": "no"}
        assert await shop.results([done]) == [("one", 1, service.pid)]
        status = await penstock("status", KEYS.namespace, redis=redis_url)
        assert (status.status, str(service.pid) in status.text) == (0, True)
        await audited(redis_url, 2)
        trace = await penstock("trace", KEYS.namespace, failed.job.id, "--json", redis=redis_url)
        kinds = [event["event"] for event in trace.json["events"]]
        assert kinds == ["registered", "delivered", "failed", "retry", "delivered", "dead"]
        assert await asyncio.to_thread(service.stop) == 0
    assert await pids(redis) == set()
    assert shop.has_ended_once()


async def test_a_stop_hands_back_what_is_in_hand(redis: "Redis", redis_url: str, folder: Path, shop: Shop) -> None:
    with Worker(folder, redis_url, stop_timeout=1) as service:
        [held] = await shop.send(verb="wait")
        await eventually(lambda: held.progress(GROUP))
        assert await asyncio.to_thread(service.stop, 10) == 0
        await audited(redis_url, 1)
        assert not shop.completed
        (folder / "go").touch()
        service.start()
        assert await shop.results([held]) == [("one", 1, service.pid)]  # the first attempt does not count
        assert await asyncio.to_thread(service.stop) == 0
    assert shop.has_ended_once()


async def test_it_ends_when_its_registrations_are_deleted(redis: "Redis", redis_url: str, folder: Path) -> None:
    with Worker(folder, redis_url, processes=2) as service:
        await eventually(lambda: service.runs() and are_up(redis, 2))
        first, second = await redis.lrange(KEYS.ids, 0, -1)
        await redis.delete(KEYS.instance(decoded(first)))
        await eventually(lambda: len(service.children) == 1)
        assert service.runs()
        await redis.delete(KEYS.instance(decoded(second)))
        assert await asyncio.to_thread(service.wait) == 0


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_reload_loses_no_job_and_uses_new_code(
    redis: "Redis", redis_url: str, folder: Path, shop: Shop, processes: int
) -> None:
    with Worker(folder, redis_url, processes=processes) as service:
        await eventually(lambda: service.runs() and are_up(redis, processes))
        before = await pids(redis)
        stopped, fewest = asyncio.Event(), [processes]
        """How many processes were registered at least."""

        async def load() -> None:
            while not stopped.is_set():
                fewest[0] = min(fewest[0], len(await pids(redis) - {0}))
                await shop.send(5)
                await asyncio.sleep(0.02)

        async def is_renewed() -> bool:
            [(version, _, _)] = await shop.results(await shop.send())
            return version == "second"

        loading = asyncio.create_task(load())
        await shop.results(await shop.send(10))
        write_app(folder, "second")
        service.signal(signal.SIGHUP)
        await eventually(is_renewed)
        if processes > 1:
            assert fewest[0] >= 1
            await eventually(lambda: are_up(redis, processes, but=before))
            await eventually(lambda: all(map(is_gone, before)))
        newest = await shop.results(await shop.send(20))
        stopped.set()
        await loading
        found = await shop.results(shop.sent)
        assert service.log_text().count('"reloaded"') == (1 if processes == 1 else 0)
        assert {version for version, _, _ in newest} == {"second"}
        assert {version for version, _, _ in found} == {"one", "second"}
        assert {attempt for _, attempt, _ in found} == {1}
        assert await asyncio.to_thread(service.stop) == 0
    assert shop.has_ended_once()
    await audited(redis_url, len(shop.sent))


async def test_a_reload_keeps_the_settings_that_can_be_used(
    redis: "Redis", redis_url: str, folder: Path, shop: Shop
) -> None:
    props = folder / "worker.yaml"
    right = f"redis: {redis_url}\nredisNamespace: {KEYS.namespace}\napp: shop:consumer\nprocesses: PROCESSES\n"
    props.write_text(right.replace("PROCESSES", "2"))
    service = Worker(folder, redis_url)
    service._environment = {"PROPS_FILE": str(props)}
    with service:
        await eventually(lambda: service.runs() and are_up(redis, 2))
        before = await pids(redis)
        props.write_text(right.replace("PROCESSES", "many"))
        service.signal(signal.SIGHUP)
        await eventually(lambda: "processes: expected" in service.log_text())
        assert await pids(redis) == before
        await shop.results(await shop.send(4))
        props.write_text(right.replace("PROCESSES", "3"))
        service.signal(signal.SIGHUP)
        await eventually(lambda: are_up(redis, 3, but=before))
        props.write_text(right.replace("PROCESSES", "1"))
        service.signal(signal.SIGHUP)
        await eventually(lambda: len(service.children) == 1)
        await shop.results(await shop.send(4))
        assert await asyncio.to_thread(service.stop) == 0
    assert await pids(redis) == set()


async def test_a_reload_of_code_that_fails_leaves_the_others_at_work(
    redis: "Redis", redis_url: str, folder: Path, shop: Shop
) -> None:
    with Worker(folder, redis_url, processes=2) as service:
        await eventually(lambda: service.runs() and are_up(redis, 2))
        await eventually(lambda: read_jobs(redis, 2))  # and have imported the code
        before = await pids(redis)
        (folder / "shop.py").write_text("raise RuntimeError('half written')\n")
        service.signal(signal.SIGHUP)
        await eventually(lambda: service.log_text().count("RuntimeError: half written") >= 2)  # it is tried again
        [left] = await pids(redis) & before
        assert await shop.results(await shop.send()) == [("one", 1, left)]
        write_app(folder, "second")
        service.signal(signal.SIGHUP)
        await eventually(lambda: are_up(redis, 2, but=before))
        await eventually(lambda: is_gone(left))
        assert {version for version, _, _ in await shop.results(await shop.send(4))} == {"second"}
        assert await asyncio.to_thread(service.stop) == 0


async def test_a_reload_of_code_that_fails_leaves_the_only_process_at_work(
    redis: "Redis", redis_url: str, folder: Path, shop: Shop
) -> None:
    with Worker(folder, redis_url) as service:
        assert await shop.results(await shop.send()) == [("one", 1, service.pid)]
        for code in ("raise RuntimeError('half written')\n", "consumer = 7\n"):
            (folder / "shop.py").write_text(code)
            seen = service.log_text().count("the former consumer goes on")
            service.signal(signal.SIGHUP)
            await eventually(lambda seen=seen: service.log_text().count("the former consumer goes on") > seen)  # type: ignore[misc]
            assert await shop.results(await shop.send()) == [("one", 1, service.pid)]
        write_app(folder, "second")
        service.signal(signal.SIGHUP)
        await eventually(lambda: service.log_text().count('"reloaded"') == 3)
        assert await shop.results(await shop.send()) == [("second", 1, service.pid)]
        assert await asyncio.to_thread(service.stop) == 0


async def test_a_stop_in_the_middle_of_a_reload_is_obeyed_at_once(
    redis: "Redis", redis_url: str, folder: Path, shop: Shop
) -> None:
    with Worker(folder, redis_url, processes=2) as service:
        await eventually(lambda: service.runs() and are_up(redis, 2))
        [held] = await shop.send(verb="wait")
        await eventually(lambda: held.progress(GROUP))
        busy = await held.progress(GROUP)
        service.signal(signal.SIGHUP)
        service.signal(signal.SIGTERM)
        await eventually(lambda: service.children == [busy])  # the other one does not wait for it
        (folder / "go").touch()
        assert await asyncio.to_thread(service.wait) == 0
    assert await shop.results([held]) == [("one", 1, busy)]


async def test_a_killed_process_is_started_again_and_its_job_claimed(
    redis: "Redis", redis_url: str, folder: Path, shop: Shop
) -> None:
    with Worker(folder, redis_url, processes=2) as service:
        await eventually(lambda: service.runs() and are_up(redis, 2))
        [held] = await shop.send(verb="wait")
        await eventually(lambda: held.progress(GROUP))
        killed = await held.progress(GROUP)
        assert killed in service.children
        os.kill(killed, signal.SIGKILL)
        (folder / "go").touch()
        [(_, attempt, pid)] = await shop.results([held])
        assert (attempt, pid != killed) == (2, True)
        await eventually(lambda: len(service.children) == 2 and killed not in service.children)
        await eventually(lambda: are_up(redis, 2, but={killed}))
        assert await asyncio.to_thread(service.stop) == 0
    assert shop.has_ended_once()
    await audited(redis_url, 1)


async def test_its_processes_end_when_the_one_that_watches_them_is_killed(
    redis: "Redis", redis_url: str, folder: Path, shop: Shop
) -> None:
    with Worker(folder, redis_url, processes=2) as service:
        await eventually(lambda: service.runs() and are_up(redis, 2))
        children = service.children
        [held] = await shop.send(verb="wait")
        await eventually(lambda: held.progress(GROUP))
        service.kill()
        (folder / "go").touch()
        await shop.results([held])
        await eventually(lambda: all(map(is_gone, children)))
    assert await pids(redis) == set()


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        ("nowhere.jobs:consumer", "app nowhere.jobs:consumer: there is no module nowhere: expected it in "),
        ("shop:clerk", "app shop:clerk: the module shop has no clerk"),
        ("shop:APP", "app shop:APP: expected a penstock.jobs.Consumer, found int"),
        ("lame:consumer", "app lame:consumer: there is no module lacking: expected it in "),
        ("odd:consumer", "app odd:consumer: importing odd failed: ZeroDivisionError: division by zero"),
    ],
)
def test_an_app_that_is_no_consumer_is_refused(folder: Path, redis_url: str, app: str, reason: str) -> None:
    (folder / "lame.py").write_text("import lacking\n")
    (folder / "odd.py").write_text("1 / 0\n")
    with (folder / "shop.py").open("a") as module:
        module.write("\nAPP = 1\n")
    with Worker(folder, redis_url, app=app) as service:
        assert service.wait() == 1
    assert reason in service.log_text()
    assert "Traceback" not in service.log_text()


def test_an_app_without_a_colon_is_a_wrong_setting(folder: Path, redis_url: str) -> None:
    with Worker(folder, redis_url, app="shop") as service:
        assert service.wait() == 2
    assert "WORKER_APP: expected a MODULE:NAME, found" in service.log_text()


async def test_penstock_run_finds_it_beside_a_package_of_the_same_name(
    redis: "Redis", redis_url: str, folder: Path
) -> None:
    """A program of the user's may have a package ``services``, too."""
    (folder / "services").mkdir()
    (folder / "services/__init__.py").touch()
    props = f"redis: {redis_url}\nredisNamespace: {KEYS.namespace}\napp: shop:consumer\nprocesses: 2\n"
    (folder / "worker.yaml").write_text(props)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "penstock", "run", "worker.yaml"),
        cwd=folder,
        stdout=asyncio.subprocess.DEVNULL,
        env=dict(os.environ),
    )
    try:
        await eventually(lambda: are_up(redis, 2))
        process.terminate()
        assert await process.wait() == 0
    finally:
        with suppress(ProcessLookupError):
            process.kill()


RIGHTS_APP: Final = """
import asyncio

from penstock.jobs import Consumer, Limit
from penstock.core.backoff import Backoff

consumer = Consumer("clerks", concurrency=4, attempts=2, backoff=Backoff((0.05,), 0, 0), claim_after=1.0)


@consumer.job("orders", values=["in"], result="out", limit=Limit(concurrency=1, by_key=True))
async def work(job):
    await job.progress(1)
    if job.values["in"] == b"fail":
        raise ValueError("no")
    if job.values["in"] == b"wait":
        await asyncio.sleep(60)
    await job.set("more", [1]).set("gone", b"").push()
    await job.get("more").delete("gone").pull()


@consumer.job("mail", limit=Limit(rate=100))
async def mail(job):
    pass


@consumer.batch("bills", 10)
async def bills(jobs):
    pass
"""


async def test_it_works_with_the_rights_that_it_names_and_no_others(
    redis: "Redis", redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(RIGHTS_APP)
    url = redis_url.replace("redis://", "redis://shop:pw@")
    (rights,) = Settings(redis=url, redis_namespace=KEYS.namespace, app="shop:consumer").rights().values()
    await redis.execute_command(*shlex.split(rights.line("shop", "pw")))
    await redis.execute_command("ACL", "LOG", "RESET")
    try:
        async with Jobs(redis_url) as jobs:
            producer = jobs.producer()
            await jobs.pause("mail")
            await redis.xgroup_create("hfxbus:str:bills", "hfxbus:csr:node", mkstream=True)
            await redis.xreadgroup("hfxbus:csr:node", "CONSUMER-1", {"hfxbus:str:bills": ">"})
            with Worker(tmp_path, url) as service:
                given: list[dict[str, Any]] = [{}, {"key": "a"}, {"key": "a"}, {"delay": 0.3}]
                sent = [await producer.send(STREAM, {"in": b""}, wait_for=[GROUP], **each) for each in given]
                failed = await producer.send(STREAM, {"in": b"fail"}, wait_for=[GROUP])
                waits = await producer.send(STREAM, {"in": b"wait"}, wait_for=[GROUP], key="b")
                mail = await producer.send("mail", wait_for=[GROUP])
                bill = await producer.send("bills", wait_for=[GROUP])
                await jobs.repeats.set("each", STREAM, {"in": b""}, every=0.2)
                await eventually(lambda: waits.progress(GROUP))
                await jobs.cancel(STREAM, waits.entry)
                await asyncio.gather(*(each.finished(60) for each in (*sent, failed, waits, bill)))
                await jobs.play("mail")
                await mail.finished(60)
                await eventually(lambda: redis.keys("hfxbus:job:each@*"))
                await eventually(lambda: redis.pubsub_numpat())
                await redis.publish("hfxbus:chn:bills:P", '{"str":"bills","grp":"node","job":"J"}')
                assert set(await jobs.producer("P").finished("bills", "J", ["node"], 60)) == {"node"}
                assert await jobs.repeats.remove("each", STREAM)
                service.signal(signal.SIGHUP)
                await eventually(lambda: redis.hget(KEYS.metric("reload"), "count"))
                assert await asyncio.to_thread(service.stop) == 0
        log: Any = await redis.execute_command("ACL", "LOG")
        assert [each for each in log if b"setinfo" not in each[b"object"]] == []
        assert "denied" not in service.log_text()
        assert "NOPERM" not in service.log_text()
    finally:
        await redis.execute_command("ACL", "DELUSER", "shop")
