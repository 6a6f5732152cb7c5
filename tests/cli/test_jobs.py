"""penstock jobs status, list, show, retry, cancel, pause and resume."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from redis.asyncio import Redis

from penstock.base.encoding import decoded
from penstock.core.acl import READ_COMMANDS
from penstock.core.backoff import Backoff
from penstock.jobs import Attempt, Consumer, Jobs
from penstock.testing.server import EmbeddedServer
from tests.cli.given import cells
from tests.support.commandline import AWKWARD, Result, penstock
from tests.support.harness import PATIENCE, eventually

STREAM = "hfxbus:str:resize"
GROUP = "hfxbus:csr:small"


@pytest.fixture(autouse=True)
def plain_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let consumers of this process log to stderr, whatever tests ran before: commands print to standard output."""
    monkeypatch.setattr(structlog, "is_configured", lambda: False)


@pytest.fixture
async def jobs(redis: Redis, redis_url: str) -> AsyncIterator[Jobs]:
    async with Jobs(redis_url, patience=10) as connected:
        yield connected


@pytest.fixture(scope="module")
def other() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
async def others(other: EmbeddedServer) -> str:
    async with Redis.from_url(other.url) as client:
        await client.flushall()
    return other.url


async def jobs_of_node(redis: Redis, many: int, stream: str = STREAM) -> list[str]:
    """Send jobs as Node does; return their entries."""
    async with redis.pipeline() as pipeline:
        for number in range(many):
            pipeline.xadd(stream, {"prd": "P", "job": f"J{number}"})
        return [decoded(entry) for entry in await pipeline.execute()]


async def shown_on(url: str, *words: str) -> Result:
    return await penstock("jobs", *words, redis=url)


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.text.splitlines()]


class Failing:
    """Consumers of one stream whose processors fail for the groups in ``bad``; ``seen`` are group, job and value."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self.bad, self.seen = set[str](), list[tuple[str, str, Any]]()

    @asynccontextmanager
    async def running(self, *groups: str, **options: Any) -> AsyncIterator[None]:
        consumers = [self.consumer(group, **options) for group in groups]
        tasks = [asyncio.create_task(self._jobs.run(consumer)) for consumer in consumers]
        try:
            yield
        finally:
            for consumer in consumers:
                consumer.stop()
            await asyncio.gather(*tasks)

    def consumer(self, group: str, **options: Any) -> Consumer:
        options = {"attempts": 1, "trim": False, "route": "resize", **options}
        consumer = Consumer(group, **options)

        @consumer.job("resize")
        async def work(job: Attempt) -> None:
            [value] = await job.get("in").pull()
            self.seen.append((group, job.id, value))
            if group in self.bad:
                raise ValueError(f"{group} is bad")

        return consumer

    async def until_dead(self, many: int) -> None:
        async def are_dead() -> bool:
            return len([each async for each in self._jobs.dead("resize")]) == many

        await eventually(are_dead)


async def test_each_stream_and_group_is_shown_with_all_that_is_known(redis: Redis, redis_url: str) -> None:
    entries = await jobs_of_node(redis, 6)
    await redis.xgroup_create(STREAM, GROUP, "0")
    await redis.xgroup_create(STREAM, "hfxbus:csr:big", "$")
    await redis.xreadgroup(GROUP, "c1", {STREAM: ">"}, count=4)
    await redis.xack(STREAM, GROUP, entries[0])
    await redis.zadd("hfxbus:wait:resize:small", {entries[1]: 9e9})
    await redis.zadd("hfxbus:later:resize", {'t ["prd","P","job","L"]': 9e9})
    await redis.xadd("hfxbus:dead:resize", {"job": "D", "grp": GROUP})
    await redis.set("hfxbus:paused:resize", "1")
    await redis.hset("hfxbus:repeated:resize", "nightly", "{}")
    await redis.zadd("hfxbus:repeats:resize", {"nightly": 9e9})
    result = await shown_on(redis_url, "status")
    assert (result.status, result.error) == (0, "")
    tables = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.text.splitlines() if "│" in line]
    stream, repeated, big, small = tables
    assert stream == ["resize", "6", "1", "1", "0", "paused"]
    assert repeated[-1] == "1 repeated"
    assert big == ["resize", "big", "0", "0", "0", "-", "0"]
    assert small[:5] == ["resize", "small", "2", "2", "1"]
    assert small[5].endswith(" s")
    assert small[6] == "1"
    state = (await shown_on(redis_url, "status", "resize", "--json")).json["servers"][0]["streams"][0]
    assert {key: state[key] for key in ("length", "delayed", "dead", "repeated", "paused", "workers")} == {
        "length": 6, "delayed": 1, "dead": 1, "repeated": 1, "paused": True, "workers": 0,
    }  # fmt: skip
    assert 0 <= state["groups"][1]["oldest"] < 60
    assert all(len(line) <= 80 for line in result.text.splitlines())


async def test_a_stream_that_no_group_reads_has_a_row_among_the_groups(redis: Redis, redis_url: str) -> None:
    await jobs_of_node(redis, 3)
    result = await shown_on(redis_url, "status")
    assert cells(result, "none yet") == ["resize", "none yet", "3", "0", "0", "-", "0"]


async def test_workers_are_counted_while_they_listen(jobs: Jobs, redis_url: str) -> None:
    await jobs.producer().send("resize", {"in": 1})  # before Redis 7.2 a consumer without a job is not known
    async with Failing(jobs).running("small", "big"):

        async def listens() -> bool:
            (state,) = (await shown_on(redis_url, "status", "--json")).json["servers"][0]["streams"] or [{}]
            groups = [(each["name"], each["alive"]) for each in state.get("groups", ())]
            return (state.get("workers"), groups) == (1, [("big", 1), ("small", 1)])

        await eventually(listens)


async def test_jobs_that_wait_are_counted_though_some_were_removed(redis: Redis, redis_url: str) -> None:
    entries = await jobs_of_node(redis, 2_100)
    await redis.xgroup_create(STREAM, GROUP, entries[9])
    await redis.xdel(STREAM, *entries[1_000:1_050])
    (group,) = (await shown_on(redis_url, "status", "--json")).json["servers"][0]["streams"][0]["groups"]
    assert (group["waiting"], group["counted"]) == (2_040, True)


async def test_streams_that_only_have_delayed_or_dead_jobs_are_found(redis: Redis, redis_url: str) -> None:
    await redis.zadd("hfxbus:later:a", {'t ["prd","P","job","L"]': 9e9})
    await redis.xadd("hfxbus:dead:b", {"job": "D", "grp": GROUP})
    await redis.set("hfxbus:job:str:in", "a value")
    found = (await shown_on(redis_url, "status", "--json")).json["servers"][0]["streams"]
    assert [(each["name"], each["delayed"], each["dead"]) for each in found] == [("a", 1, 0), ("b", 0, 1)]


@pytest.mark.parametrize("name", AWKWARD)
async def test_any_name_is_found(redis: Redis, redis_url: str, name: str) -> None:
    await jobs_of_node(redis, 2, f"hfxbus:str:{name}")
    (state,) = (await shown_on(redis_url, "status", "--json")).json["servers"][0]["streams"]
    assert (state["name"], state["length"]) == (name, 2)
    assert [each["job"] for each in lines(await shown_on(redis_url, "list", name, "--json"))] == ["J0", "J1"]


async def test_no_streams_are_no_error_and_one_that_does_not_exist_is(redis: Redis, redis_url: str) -> None:
    result = await shown_on(redis_url, "status")
    assert (result.status, result.text) == (0, f"{redis_url}: no streams\n")
    for words in (("status", "nix"), ("list", "nix"), ("pause", "nix")):
        result = await shown_on(redis_url, *words)
        message = "penstock: this server has no stream nix: `penstock jobs status` lists all that exist\n"
        assert (result.status, result.error) == (1, message)


async def test_a_key_of_another_type_is_a_finding_and_other_streams_are_shown(redis: Redis, redis_url: str) -> None:
    await jobs_of_node(redis, 1)
    await redis.set("hfxbus:str:wrong", "text")
    await redis.set("hfxbus:later:resize", "text")
    result = await shown_on(redis_url, "status")
    assert result.status == 1
    assert cells(result, "none yet")[:3] == ["resize", "none yet", "1"]
    assert "hfxbus:str:wrong is of another type" in result.text
    assert "hfxbus:later:resize is of another type" in result.text


async def test_nothing_is_changed_and_no_keys_are_listed_at_once(redis: Redis, redis_url: str) -> None:
    await jobs_of_node(redis, 3)
    await redis.xgroup_create(STREAM, GROUP, "0")
    before = await redis.xinfo_stream(STREAM, full=True)
    await redis.config_resetstat()
    for words in (("status",), ("list", "resize"), ("list", "resize", "--state", "waiting"), ("show", "resize", "J1")):
        assert (await shown_on(redis_url, *words)).status == 0
    assert await redis.xinfo_stream(STREAM, full=True) == before
    assert not {"cmdstat_keys", "cmdstat_set", "cmdstat_xreadgroup"} & set(await redis.info("commandstats"))


async def test_a_user_who_may_only_read_sees_all(redis: Redis, redis_url: str, jobs: Jobs) -> None:
    await jobs_of_node(redis, 3)
    await redis.xgroup_create(STREAM, GROUP, "0")
    await redis.xreadgroup(GROUP, "c1", {STREAM: ">"}, count=1)
    words = ["reset", "on", ">pw", "~hfxbus:*", *(f"+{command.lower()}" for command in READ_COMMANDS)]
    await redis.execute_command("ACL", "SETUSER", "reader", *words)
    url = redis_url.replace("redis://", "redis://reader:pw@")
    reads = [("status",), ("list", "resize"), ("show", "resize", "J0", "--values", "--scan")]
    states = ("waiting", "running", "retrying", "delayed", "dead")
    reads += [("list", "resize", "--state", state) for state in states]
    for each in reads:
        result = await shown_on(url, *each)
        assert (result.status, result.error) == (0, ""), each
    result = await shown_on(url, "pause", "resize")
    assert result.status == 1
    assert "no permission" in result.error.lower()
    await redis.execute_command("ACL", "DELUSER", "reader")


async def test_jobs_are_listed_by_their_state(jobs: Jobs, redis: Redis, redis_url: str) -> None:
    entries = await jobs_of_node(redis, 5)
    await redis.xgroup_create(STREAM, GROUP, "0")
    await redis.xgroup_create(STREAM, "hfxbus:csr:big", "$")
    await redis.xreadgroup(GROUP, "c1", {STREAM: ">"}, count=3)
    await redis.xack(STREAM, GROUP, entries[0])
    await redis.zadd("hfxbus:wait:resize:small", {entries[2]: 9e9})
    producer = jobs.producer()
    later = [await producer.send("resize", delay=delay) for delay in (500, 600)]
    every = lines(await shown_on(redis_url, "list", "resize", "--json"))
    assert [each["groups"]["small"] for each in every] == ["ended", "running", "retrying", "waiting", "waiting"]
    assert {each["groups"]["big"] for each in every} == {"ended"}
    small = ("list", "resize", "--group", "small", "--json", "--state")
    assert [each["job"] for each in lines(await shown_on(redis_url, *small, "waiting"))] == ["J3", "J4"]
    (running,) = lines(await shown_on(redis_url, *small, "running"))
    assert {key: running[key] for key in ("job", "consumer", "attempts")} == {
        "job": "J1", "consumer": "c1", "attempts": 1,
    }  # fmt: skip
    (retrying,) = lines(await shown_on(redis_url, *small, "retrying"))
    assert (retrying["job"], retrying["due"]) == ("J2", 9e9)
    delayed = lines(await shown_on(redis_url, *small, "delayed"))
    assert [each["job"] for each in delayed] == [each.job.id for each in later]
    behind = lines(await shown_on(redis_url, *small, "delayed", "--after", str(delayed[0]["due"])))
    assert [each["job"] for each in behind] == [later[1].job.id]


async def test_a_list_is_continued_behind_what_was_shown_last(redis: Redis, redis_url: str) -> None:
    entries = await jobs_of_node(redis, 5)
    await redis.xgroup_create(STREAM, GROUP, "0")
    for state in ((), ("--state", "waiting")):
        result = await shown_on(redis_url, "list", "resize", "--most", "2", *state)
        assert f"these are 2: --after {entries[1]} shows those behind" in result.text
        result = await shown_on(redis_url, "list", "resize", "--after", entries[3], "--json", *state)
        assert [each["job"] for each in lines(result)] == ["J4"]
    await redis.xreadgroup(GROUP, "c1", {STREAM: ">"})
    result = await shown_on(redis_url, "list", "resize", "--after", entries[3], "--json", "--state", "running")
    assert [each["job"] for each in lines(result)] == ["J4"]


async def test_what_a_list_cannot_show_is_said(redis: Redis, redis_url: str) -> None:
    await jobs_of_node(redis, 1)
    await redis.xgroup_create(STREAM, GROUP, "0")
    for words, status, message in (
        (["--group", "nix"], 1, "stream resize has no group nix: its groups are small"),
        (["--state", "nix"], 2, "--state nix: expected waiting, running, retrying, delayed or dead"),
        (["--after", "nix"], 2, "--after nix: expected an entry, e.g. 1700000000000-0"),
        (
            ["--after", "nix", "--state", "delayed"],
            2,
            "--after nix: expected a time (s since the epoch): due of --json",
        ),
    ):
        result = await shown_on(redis_url, "list", "resize", *words)
        assert (result.status, result.error) == (status, f"penstock: {message}\n")
    result = await shown_on(redis_url, "list", "resize", "--state", "dead")
    assert (result.status, result.text) == (0, "resize: no dead jobs\n")


async def test_a_job_is_shown_with_its_groups_errors_values_progress_and_completions(
    jobs: Jobs, redis: Redis, redis_url: str
) -> None:
    failing = Failing(jobs)
    failing.bad.add("small")
    async with failing.running("small", attempts=2, backoff=Backoff((), 500, 500)), failing.running("big"):
        values = {"in": {"page": 7}, "raw": b"\xff\0"}
        sent = await jobs.producer().send("resize", values, wait_for=["big"], key="ada")
        await sent.finished(PATIENCE)
        await jobs.job(sent.job.id).set("progress:big", {"percent": 50}).push()

        async def is_retrying() -> bool:
            return bool(await redis.zcard("hfxbus:wait:resize:small"))

        await eventually(is_retrying)
        text = (await shown_on(redis_url, "show", "resize", sent.job.id)).text
        found = (await shown_on(redis_url, "show", "resize", str(sent.entry), "--values", "--json")).json
    assert (found["stream"], found["job"]) == ("resize", sent.job.id)
    (entry,) = found["entries"]
    assert entry["fields"]["key"] == "ada"
    big, small = entry["groups"]
    assert (big["state"], small["state"], small["attempts"]) == ("ended", "retrying", 1)
    assert [each["error"]["message"] for each in small["errors"]] == ["small is bad"]
    assert [(each["key"], each.get("value"), each.get("value64")) for each in found["values"]] == [
        ("in", {"page": 7}, None),
        ("raw", None, "/wA="),
    ]
    assert all(600_000 < each["ttl"] <= 604_800 for each in found["values"])
    assert found["progress"] == {"big": {"percent": 50}}
    assert [(each["group"], each["error"]) for each in found["completions"]] == [("big", None)]
    assert "ValueError: small is bad" in text
    assert 'progress in big: {"percent": 50}' in text
    assert "/wA=" not in text


async def test_a_dead_job_is_shown_and_one_that_is_delayed_and_one_of_node(
    jobs: Jobs, redis: Redis, redis_url: str
) -> None:
    failing = Failing(jobs)
    failing.bad.add("small")
    async with failing.running("small"):
        dead = await jobs.producer().send("resize", {"in": 1})
        await failing.until_dead(1)
    await redis.xtrim(STREAM, 0)
    await redis.delete(f"hfxbus:job:{dead.job.id}:in")
    result = await shown_on(redis_url, "show", "resize", dead.job.id)
    assert "dead in small after 1 attempt" in result.text
    assert "ValueError: small is bad" in result.text
    assert cells(result, " in ")[3] == "gone"
    found = (await shown_on(redis_url, "show", "resize", str(dead.entry), "--json")).json
    assert (found["job"], found["dead"][0]["values"]) == (dead.job.id, {"in": 1})
    later = await jobs.producer().send("resize", {"in": 1}, delay=600)
    assert "delayed, begins" in (await shown_on(redis_url, "show", "resize", later.job.id)).text
    await redis.set("hfxbus:job:J0:in", '"tea"')
    await jobs_of_node(redis, 1)
    assert (await shown_on(redis_url, "show", "resize", "J0", "--json")).json["values"] == []
    found = (await shown_on(redis_url, "show", "resize", "J0", "--json", "--scan", "--values")).json
    assert found["values"] == [{"key": "in", "bytes": 5, "ttl": None, "value": "tea"}]
    result = await shown_on(redis_url, "show", "resize", "nix")
    assert result.status == 1
    assert "this server has no job nix in stream resize" in result.error


async def test_a_dead_job_is_sent_again_to_the_group_that_it_died_in_and_to_no_other(
    jobs: Jobs, redis: Redis, redis_url: str
) -> None:
    failing = Failing(jobs)
    failing.bad.add("small")
    async with failing.running("small", "big"):
        sent = await jobs.producer().send("resize", {"in": "tea", "raw": b'\xff\0"\xed\xb2\x80'}, key="ada")
        await failing.until_dead(1)
        ((_, fields),) = await redis.xrange(STREAM) or []
        await redis.xgroup_create(STREAM, "hfxbus:csr:late", "0")  # ours, which lags
        await redis.xgroup_create(STREAM, "hfxbus:csr:node", "$")  # Node's, which is through
        await redis.delete(f"hfxbus:job:{sent.job.id}:in")
        failing.bad.clear()
        failing.seen.clear()
        node: Any = Redis.from_url(redis_url, socket_timeout=None, single_connection_client=True)
        number = await node.client_id()
        asked: Any = node.xreadgroup("hfxbus:csr:node", "n", {STREAM: ">"}, block=3_600_000)
        waiting = asyncio.create_task(asked)
        await eventually(lambda: _has_blocked(redis, 3))
        result = await shown_on(redis_url, "retry", "resize", sent.job.id)
        assert (result.status, result.text) == (0, f"{sent.job.id} of resize was sent again for small\n")

        async def is_done() -> bool:
            groups = {each["name"].decode(): each for each in await redis.xinfo_groups(STREAM)}
            return bool(failing.seen) and groups[GROUP]["pending"] == 0

        await eventually(is_done)
        async with failing.running("late"):
            await eventually(lambda: _has_read_all(redis, "late"))
    assert failing.seen == [("small", sent.job.id, "tea"), ("late", sent.job.id, "tea")]  # the first entry is late's
    await redis.client_unblock(number)
    assert await waiting == []
    await node.aclose()
    assert not [each async for each in jobs.dead("resize")]
    assert 600_000 < await redis.ttl(f"hfxbus:job:{sent.job.id}:in") <= 604_800
    _, (_, again) = await redis.xrange(STREAM) or []
    inline: Any = {b"v:in", b"v:raw"}  # which are read where they are now
    assert again == {name: (fields or {})[name] for name in (fields or {}).keys() - inline} | {b"for": b"small"}
    (_, *_, newest) = lines(await shown_on(redis_url, "list", "resize", "--json"))
    (entry,) = (await shown_on(redis_url, "show", "resize", newest["entry"], "--json")).json["entries"]
    assert [entry["fields"][name] for name in ("job", "key", "for")] == [sent.job.id, "ada", "small"]
    result = await shown_on(redis_url, "retry", "resize", sent.job.id)
    assert result.status == 1
    assert f"no dead job {sent.job.id} of resize" in result.error


async def _has_blocked(redis: Redis, many: int) -> bool:
    return bool((await redis.info("clients"))["blocked_clients"] >= many)


async def _has_read_all(redis: Redis, group: str) -> bool:
    last = (await redis.xinfo_stream(STREAM))["last-generated-id"]
    found = {each["name"].decode(): each for each in await redis.xinfo_groups(STREAM)}[f"hfxbus:csr:{group}"]
    return (found["last-delivered-id"], found["pending"]) == (last, 0)


async def test_all_dead_jobs_of_a_group_are_sent_again_once(jobs: Jobs, redis: Redis, redis_url: str) -> None:
    failing = Failing(jobs)
    failing.bad |= {"small", "big"}
    async with failing.running("small", "big"):
        for number in range(12):
            await jobs.producer().send("resize", {"in": number})
        await failing.until_dead(24)
        found = (await shown_on(redis_url, "retry", "resize", "--all", "--group", "big", "--json")).json
        assert {each["group"] for each in found["retried"]} == {"big"}
        assert len(found["retried"]) == 12
        await failing.until_dead(24)  # they are dead again
    result = await shown_on(redis_url, "retry", "resize")
    assert (result.status, result.error) == (2, "penstock: expected a job, or --all\n")


async def test_values_that_are_gone_for_good_are_named(jobs: Jobs, redis: Redis, redis_url: str) -> None:
    failing = Failing(jobs)
    failing.bad.add("small")
    async with failing.running("small"):
        sent = await jobs.producer().send("resize", {"in": 1, "film": b"x" * 2_000_000})
        await failing.until_dead(1)
    await redis.delete(f"hfxbus:job:{sent.job.id}:in", f"hfxbus:job:{sent.job.id}:film")
    result = await shown_on(redis_url, "retry", "resize", "--all")
    assert result.error == f"penstock: {sent.job.id}: values are gone for good: film\n"
    assert await redis.get(f"hfxbus:job:{sent.job.id}:in") == b"1"


async def test_a_job_is_cancelled_by_its_id_by_its_entry_and_before_its_time(
    jobs: Jobs, redis: Redis, redis_url: str
) -> None:
    await redis.xgroup_create(STREAM, GROUP, "0", mkstream=True)
    producer = jobs.producer()
    first, second = [await producer.send("resize", {"in": 1}, wait_for=["small"]) for _ in range(2)]
    later = await producer.send("resize", {"in": 1}, delay=600, wait_for=["small"])
    for sent, name in ((first, first.job.id), (second, str(second.entry)), (later, later.job.id)):
        result = await shown_on(redis_url, "cancel", "resize", name)
        assert (result.status, result.text) == (0, f"{name} of resize is cancelled for small\n")
        assert (await sent.finished(PATIENCE))["small"].error["code"] == "CANCELLED"
        result = await shown_on(redis_url, "cancel", "resize", name)
        assert result.status == 1
        assert f"no job {name} in stream resize" in result.error
    assert await redis.xlen(STREAM) == 0
    assert await redis.zcard("hfxbus:later:resize") == 0


async def test_a_job_that_all_groups_have_done_cannot_be_cancelled(redis: Redis, redis_url: str) -> None:
    await jobs_of_node(redis, 1)
    await redis.xgroup_create(STREAM, GROUP, "$")
    result = await shown_on(redis_url, "cancel", "resize", "J0", "--json")
    assert (result.status, result.json) == (1, {"stream": "resize", "job": "J0", "cancelled": []})


async def test_no_job_begins_while_its_stream_is_paused(jobs: Jobs, redis: Redis, redis_url: str) -> None:
    await jobs_of_node(redis, 1)
    result = await shown_on(redis_url, "pause", "resize")
    assert result.text == "resize is paused: no job begins until `penstock jobs resume resize`\n"
    failing = Failing(jobs)
    async with failing.running("small"):

        async def has_group() -> bool:
            return bool(await redis.xinfo_groups(STREAM))

        await eventually(has_group)
        await asyncio.sleep(0.3)  # timing: time to begin wrongly
        assert failing.seen == []
        assert (await shown_on(redis_url, "resume", "resize")).text == "resize goes on\n"
        await eventually(lambda: _is(len(failing.seen) == 1))
    result = await shown_on(redis_url, "resume", "resize")
    assert (result.status, result.text) == (1, "resize was not paused\n")


async def _is(value: bool) -> bool:
    return value


async def test_jobs_are_found_on_several_servers(redis: Redis, redis_url: str, others: str) -> None:
    words = ("--redis", redis_url, "--redis", others)
    async with Redis.from_url(others) as there:
        for server, job in ((redis, "J0"), (there, "J1")):
            await server.xadd(STREAM, {"prd": "P", "job": job}, id="5-1")
            await jobs_of_node(server, 1)
    for given in (words, ("--redis", f"{redis_url} {others}")):
        servers = (await penstock("jobs", "status", *given, "--json")).json["servers"]
        assert [each["streams"][0]["length"] for each in servers] == [2, 2]
    found = lines(await penstock("jobs", "list", "resize", *words, "--json"))
    assert [each["job"] for each in found] == ["J0", "J0", "J1", "J0"]
    result = await penstock("jobs", "cancel", "resize", "5-1", *words)
    assert result.status == 1
    assert "have an entry 5-1 each: name the job, or one server with --redis" in result.error
    result = await penstock("jobs", "cancel", "resize", "J1", *words)
    assert result.status == 1
    assert "is removed: no group had still to do it" in result.text
    result = await penstock("jobs", "pause", "resize", *words, "--json")
    assert len(result.json["paused"]) == 2
    result = await penstock("jobs", "status", "--redis", redis_url, "--redis", "redis://127.0.0.1:1/0")
    assert result.status == 1
    assert "cannot reach redis://127.0.0.1:1/0" in result.error
    result = await penstock("jobs", "status", "--redis", redis_url, "--redis", redis_url)
    assert (result.status, result.error) == (2, "penstock: a server is named twice: name each once\n")
    result = await penstock("jobs", "cancel", "resize", "J1", *words, "--route", "resize")
    assert (result.status, result.error) == (
        2,
        "penstock: --route resize: expected NAME=N, N the place of a server, from 0\n",
    )


async def test_a_dead_job_whose_values_are_on_another_server_is_sent_again_with_them(
    redis: Redis, redis_url: str, others: str
) -> None:
    words = ("--redis", redis_url, "--redis", others)
    async with Jobs(redis_url, others, patience=10) as jobs:
        failing = Failing(jobs)
        failing.bad.add("small")
        place = jobs.routes.place("resize")
        job = next(each for each in (jobs.job() for _ in range(100)) if jobs.routes.place(each.id) != place)
        async with failing.running("small"):
            await jobs.producer().send("resize", job.set("in", "tea"))
            await failing.until_dead(1)
            await jobs.node(job.id).command("DEL", f"hfxbus:job:{job.id}:in".encode())
            failing.bad.clear()
            failing.seen.clear()
            assert (await penstock("jobs", "retry", "resize", job.id, *words)).status == 0
            await eventually(lambda: _is(failing.seen == [("small", job.id, "tea")]))
        found = (await penstock("jobs", "show", "resize", job.id, *words, "--values", "--json")).json
        assert [each["value"] for each in found["values"]] == ["tea"]


async def test_completions_of_cancelled_jobs_reach_the_producer_of_a_routed_stream(
    redis: Redis, redis_url: str, others: str
) -> None:
    async with Jobs(redis_url, others, patience=10) as jobs:
        route = next(str(each) for each in range(100) if jobs.routes.place(str(each)) != jobs.routes.place("resize"))
        node = jobs.node(route)
        await node.command("XGROUP", b"CREATE", STREAM, GROUP, "0", "MKSTREAM")
        sent = await jobs.producer().send("resize", {"in": 1}, route=route, wait_for=["small"])
        words = ("--redis", redis_url, "--redis", others)
        assert (await penstock("jobs", "cancel", "resize", sent.job.id, *words)).status == 0
        assert (await sent.finished(PATIENCE))["small"].error["code"] == "CANCELLED"


async def test_keys_may_begin_with_another_prefix(redis: Redis, redis_url: str) -> None:
    await jobs_of_node(redis, 1, "bus2:str:resize")
    assert (await shown_on(redis_url, "status")).text == f"{redis_url}: no streams\n"
    found = (await shown_on(redis_url, "status", "--prefix", "bus2", "--json")).json
    assert found["servers"][0]["streams"][0]["name"] == "resize"
    result = await shown_on(redis_url, "status", "--prefix", 'a"b')
    assert result.status == 2
