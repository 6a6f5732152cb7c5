"""penstock plan and apply: change a composition under load; no message is lost, duplicated or out of order."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.cli.plan import _Call, _planned
from penstock.composition.rollout.apply import run_step, write_notes
from penstock.composition.rollout.steps import Options
from tests.cli.running import FAN, SEND, TRACK, Composition, Producer
from tests.support.commandline import running
from tests.support.harness import eventually

pytestmark = pytest.mark.slow


@pytest.fixture
def mine(tmp_path: Path, redis: Redis, redis_url: str) -> Iterator[Composition]:
    (tmp_path / "mine").mkdir()
    with ExitStack() as ends:
        yield Composition(tmp_path / "mine", redis, redis_url, ends)


@pytest.fixture
async def load(redis: Redis, redis_url: str) -> AsyncIterator[Producer]:
    async with Redis.from_url(redis_url) as other:
        yield Producer(other, "in")


async def holds(mine: Composition) -> None:
    result = await mine.penstock("audit")
    assert (result.status, result.error) == (0, "")


def steps(words: str) -> list[str]:
    return [step["step"] for step in json.loads(words)["steps"]]


async def test_nothing_to_do_is_reported(mine: Composition) -> None:
    await mine.start("mpush", **FAN)
    result = await mine.penstock("plan", "--check")
    assert (result.status, result.text) == (0, f"{mine.directory}: nothing to do\n")
    assert (await mine.apply()).status == 0


async def test_the_plan_is_a_table_and_changes_nothing(mine: Composition) -> None:
    await mine.start("mpush", **FAN)
    mine.change("mpush", out=["a", "b", "c"])
    before = await mine.redis.dbsize()
    result = await mine.penstock("plan")
    assert result.status == 0
    assert "│ 1 │ reload │ fan │ out: + c │" in result.text
    assert (await mine.penstock("plan", "--check")).status == 1
    assert await mine.redis.dbsize() == before
    found = (await mine.penstock("plan", "--json")).json
    assert found == {"steps": [{"step": "reload", "namespace": "fan", "words": "out: + c", "refused": None}]}


async def test_a_subscriber_is_added_under_load(mine: Composition, load: Producer) -> None:
    await mine.start("mpush", **FAN)
    async with load.pushing():
        await load.more()
        mine.change("mpush", out=["a", "b", "c"])
        result = await mine.apply()
        assert (result.status, result.error) == (0, "")
        await load.more()
    await mine.settled("in")
    everything = [*range(1, load.pushed + 1)]
    assert await mine.held("a") == await mine.held("b") == everything
    late = await mine.held("c")
    assert 50 <= len(late) < load.pushed
    assert late == everything[-len(late) :]
    await holds(mine)


async def test_registrations_may_lie_on_another_server(mine: Composition, redis_url: str) -> None:
    await mine.start("mpush", **FAN, serviceRedis=redis_url.removesuffix("0") + "1")
    mine.change("mpush", out=["a", "b", "c"])
    assert (await mine.apply()).status == 0
    assert (await mine.penstock("plan", "--check")).status == 0
    assert await mine.redis.hget("fan:lists", "c") == b"out"


async def test_an_instance_that_has_started_since_the_change_needs_no_order(mine: Composition) -> None:
    await mine.start("mpush", **FAN)
    mine.change("mpush", out=["a", "b", "c"])
    assert (await mine.apply()).status == 0
    second = int(str(await mine.redis.hget("fan:1", "reloaded")).split()[2].partition(".")[0])

    async def is_later() -> bool:
        return (await mine.redis.time())[0] > second

    await eventually(is_later)
    await mine.start("mpush")
    assert (await mine.penstock("plan", "--check")).status == 0


async def test_a_list_that_two_have_filled_is_deleted_when_both_have_left_it(mine: Composition) -> None:
    second: dict[str, Any] = {"redisNamespace": "second", "in": "a", "pending": "second:pending", "out": ["b", "x"]}
    await mine.start("mpush-2", **second)
    await mine.start("mpush", **FAN)
    mine.change("mpush", out=["a"])
    mine.change("mpush-2", out=["x"])
    assert steps((await mine.penstock("plan", "--drop", "--json")).text) == ["reload", "reload", "drop"]


async def test_a_new_subscriber_gets_what_another_one_still_holds(mine: Composition, load: Producer) -> None:
    await mine.start("mpush", **FAN)
    async with load.pushing():
        await load.more(3_000)
        await mine.redis.rpop("a", 20)
        mine.change("mpush", out=["a", "b", "c"])
        assert (await mine.apply("--backfill", "c=a")).status == 0
        await load.more()
    await mine.settled("in")
    assert await mine.held("c") == await mine.held("a") == [*range(21, load.pushed + 1)]
    await holds(mine)
    again = await mine.apply("--backfill", "c=a", "--json")
    assert (again.status, [step["done"] for step in again.json["steps"]]) == (0, ["0 copied"])
    assert len(await mine.held("c")) == load.pushed - 20


async def test_several_instances_begin_to_fill_a_new_subscriber_at_one_instant(
    mine: Composition, load: Producer
) -> None:
    for _ in range(3):
        await mine.start("mpush", **FAN)
    async with load.pushing():
        await load.more(1_000)
        mine.change("mpush", out=["a", "b", "c"])
        assert (await mine.apply("--backfill", "c=a")).status == 0
        await load.more(1_000)
    await mine.settled("in")
    assert sorted(await mine.held("c")) == [*range(1, load.pushed + 1)]
    await holds(mine)


async def test_a_new_subscriber_that_not_all_instances_began_to_fill_at_once_is_not_back_filled(
    mine: Composition, load: Producer
) -> None:
    early = await mine.start("mpush", **FAN)
    await mine.start("mpush")
    mine.change("mpush", out=["a", "b", "c"])
    early.signal(signal.SIGHUP)
    async with load.pushing():
        await eventually(lambda: mine.redis.hexists("fan:metrics:taken", "c"))
        result = await mine.apply("--backfill", "c=a")
    assert (result.status, "c was an output before" in result.error) == (1, True)


@pytest.mark.parametrize(
    ("out", "backfill", "words"),
    [
        (["a", "b", "c"], "c=d", "d is not an output of fan before and after the change"),
        (["a", "c"], "c=b", "b is not an output of fan before and after the change"),
        (["a", "b", "old"], "old=a", "old was an output before"),
    ],
)
async def test_a_back_fill_that_cannot_be_exact_is_refused(
    mine: Composition, out: list[str], backfill: str, words: str
) -> None:
    await mine.start("mpush", **FAN)
    await mine.redis.hset("fan:metrics:taken", "old", 7)
    mine.change("mpush", out=out)
    result = await mine.penstock("plan", "--backfill", backfill)
    assert (result.status, words in result.error) == (1, True)


async def test_a_removed_subscriber_is_refused_while_its_list_holds_messages(mine: Composition, load: Producer) -> None:
    await mine.start("mpush", **FAN)
    async with load.pushing():
        await load.more()
        mine.change("mpush", out=["a"])
        for command in ("plan", "apply"):
            result = await mine.penstock(command, *(["--yes"] if command == "apply" else []))
            assert result.status == 1
            assert "fan: b holds " in result.error
            assert "--drain waits until its reader has emptied it, --drop deletes its messages" in result.error
        await load.more()
    await mine.settled("in")
    assert await mine.held("b") == [*range(1, load.pushed + 1)]
    assert not await mine.redis.exists("fan:changes")


async def test_a_removed_subscriber_is_drained_by_its_reader(mine: Composition, load: Producer) -> None:
    await mine.start("mpush", **FAN)
    got: list[int] = []

    async def read() -> None:
        async with Redis.from_url(mine.settings["mpush"]["redis"]) as reader:
            while True:
                got.extend(int(number) for number in await reader.rpop("b", 7) or [])
                await asyncio.sleep(0.005)

    async with load.pushing():
        await load.more(500)
        mine.change("mpush", out=["a"])
        reader = asyncio.create_task(read())
        result = await mine.apply("--drain")
        assert (result.status, result.error) == (0, "")
        reader.cancel()
        await load.more()
    await mine.settled("in")
    assert await mine.held("a") == [*range(1, load.pushed + 1)]
    assert got == [*range(1, len(got) + 1)]
    assert len(got) == int(await mine.redis.hget("fan:metrics:delivered", "b") or 0)
    assert not await mine.redis.exists("b", "fan:changes")
    await holds(mine)


async def test_a_drain_without_a_reader_times_out_and_continues_with_the_next_call(mine: Composition) -> None:
    await mine.start("mpush", **FAN)
    await mine.redis.lpush("in", 1, 2)
    await mine.settled("in")
    mine.change("mpush", out=["a"])
    result = await mine.apply("--drain", "--wait", "4")
    assert result.status == 1
    assert "b still holds 2 messages after 4 s: is its reader running?" in result.error
    assert "1 of 2 steps are done; not done: drain wait until b is empty. Apply again" in result.error
    refused = await mine.penstock("plan")
    assert (refused.status, "b holds 2 messages" in refused.error) == (1, True)
    await mine.redis.rpop("b", 2)
    assert (await mine.apply("--drain")).status == 0
    assert (await mine.penstock("plan", "--check")).status == 0


async def test_a_removed_subscriber_is_dropped_and_counted(mine: Composition, load: Producer) -> None:
    await mine.start("mpush", **FAN)
    async with load.pushing():
        await load.more()
        mine.change("mpush", out=["a"])
        result = await mine.apply("--drop", "--json")
        assert result.status == 0
        await load.more()
    await mine.settled("in")
    dropped = int(await mine.redis.hget("fan:metrics:dropped", "b") or 0)
    assert result.json["steps"][1]["done"] == f"{dropped:,} dropped"
    assert dropped >= 50
    assert await mine.redis.hget("fan:metrics:delivered", "b") == b"0"
    assert await mine.held("a") == [*range(1, load.pushed + 1)]
    assert not await mine.redis.exists("b", "fan:changes")
    await holds(mine)


async def test_an_input_list_is_renamed_in_order_if_producers_switch_first(mine: Composition, load: Producer) -> None:
    """The service still has a backlog under the old name when messages arrive under the new one."""
    await mine.start("mpush", **FAN, maxLength=60)
    async with load.pushing():
        await load.more(200)
        load.target = "new"
        await load.more()
        mine.change("mpush", **{"in": "new"}, maxLength=None)
        assert steps((await mine.penstock("plan", "--json")).text) == ["move", "reload", "move"]
        result = await mine.apply()
        assert (result.status, result.error) == (0, "")
        await load.more()
    await mine.settled("in", "new")
    assert await mine.held("a") == await mine.held("b") == [*range(1, load.pushed + 1)]
    await holds(mine)


async def test_an_input_list_is_renamed_in_order_if_producers_stay(mine: Composition, load: Producer) -> None:
    """Messages that they push to the old name wait there until the next call."""
    await mine.start("mpush", **FAN)
    async with load.pushing():
        await load.more()
        mine.change("mpush", **{"in": "new"})
        result = await mine.apply()
        assert result.status == 0
        await load.more()
        assert (await mine.penstock("plan", "--json")).json["steps"][0]["to"] == "new"
        result = await mine.apply()
        assert " meanwhile or in hand of a worker: push to new, and apply again" in result.error
    assert (await mine.apply()).status == 0
    await mine.settled("in", "new")
    assert await mine.held("a") == await mine.held("b") == [*range(1, load.pushed + 1)]
    assert await mine.redis.hgetall("fan:changes") == {b"in": b"moved new"}
    assert (await mine.penstock("plan", "--check")).status == 0
    await holds(mine)


async def test_an_output_is_renamed_under_load(mine: Composition, load: Producer) -> None:
    await mine.start("mpush", **FAN)
    async with load.pushing():
        await load.more()
        mine.change("mpush", out=["a", "c"])
        assert steps((await mine.penstock("plan", "--json")).text) == ["reload", "empty"]
        result = await mine.apply("--rename", "b=c")
        assert (result.status, result.error) == (0, "")
        await load.more()
    await mine.settled("in")
    assert await mine.held("a") == await mine.held("c") == [*range(1, load.pushed + 1)]
    assert not await mine.redis.exists("b")
    assert await mine.redis.hgetall("fan:metrics:taken") == {
        name: str(load.pushed).encode() for name in (b"a", b"c", b"count")
    }
    await holds(mine)
    assert (await mine.apply("--rename", "b=c")).status == 0


@pytest.mark.slow
async def test_what_a_worker_has_in_hand_of_a_renamed_list_is_waited_for_and_named(mine: Composition) -> None:
    await mine.start("mpush", **FAN)
    await mine.redis.zadd("b:consumers", {"w1": 4e15})
    await mine.redis.lpush("b:consumer:w1", "x", "y")
    mine.change("mpush", out=["a", "c"])
    result = await mine.apply("--rename", "b=c", "--wait", "8")
    assert result.status == 0
    assert "2 messages of b in hand of consumers of penstock.lists after 8 s" in " ".join(result.text.split())
    await mine.redis.zadd("b:consumers", {"w1": 1})  # it has died
    assert (await mine.apply("--rename", "b=c")).status == 0
    assert await mine.redis.lrange("c", 0, -1) == [b"y", b"x"]
    assert not await mine.redis.exists("b", "b:consumer:w1")


async def test_a_list_between_two_services_is_renamed_in_order(mine: Composition, load: Producer) -> None:
    """The reader has a backlog, but sees every message once, oldest first."""
    await mine.start("mpush", **FAN)
    await mine.start("mdispatch", **TRACK)
    async with load.pushing():
        await load.more(2_000)
        mine.change("mdispatch", **{"in": "c"}, out="jobs")
        mine.change("mpush", out=["a", "c"])
        assert steps((await mine.penstock("plan", "--json")).text) == ["reload", "move", "reload", "move"]
        assert (await mine.apply()).status == 0
        await load.more()
    await mine.settled("in", "b", "c")
    assert await mine.held("jobs") == [*range(1, load.pushed + 1)]
    assert not await mine.redis.exists("work", "b")
    queues = {await mine.redis.hget(f"track:message:{id}", "queue") for id in (1, load.pushed)}
    assert queues == {b"jobs"}
    await holds(mine)


async def test_a_list_that_loses_its_only_reader_is_drained_first(mine: Composition) -> None:
    await mine.start("mpush", **FAN)
    track = await mine.start("mdispatch", **TRACK)
    track.signal(signal.SIGSTOP)
    await mine.redis.lpush("b", 1, 2, 3)
    mine.change("mdispatch", **{"in": "a"})
    refused = await mine.penstock("plan")
    assert (refused.status, "messages: --drain waits until its reader" in refused.error) == (1, True)
    assert steps((await mine.penstock("plan", "--drop", "--json")).text) == ["reload", "drop"]
    assert steps((await mine.penstock("plan", "--drain", "--json")).text) == ["drain", "reload"]
    track.signal(signal.SIGCONT)
    assert (await mine.apply("--drain")).status == 0
    await mine.settled("b")
    assert await mine.held("work") == [1, 2, 3]
    assert (await mine.penstock("plan", "--check")).status == 0


async def test_settings_that_cannot_be_used_are_refused_by_the_service_which_runs_on(
    mine: Composition, load: Producer
) -> None:
    """The file in the composition is valid, but the service reads another one, which is unchanged or invalid."""
    there = mine.directory.parent / "there.yaml"
    mine.change("mpush", **FAN)
    right = (mine.directory / "mpush.yaml").read_text()
    there.write_text(right)
    await mine.start("mpush", reads=there)
    async with load.pushing():
        mine.change("mpush", out=["a", "b", "c"])
        result = await mine.apply()
        assert (result.status, "it reads another file, or" in result.error) == (1, True)
        there.write_text(right.replace("- b", "- in"))
        result = await mine.apply()
        assert result.status == 1
        assert "fan:1 refuses: " in result.error
        assert 'there.yaml:2: out: "in" is `in` as well' in result.error
        assert "0 of 1 steps are done; not done: reload out: + c. Apply again to go on" in result.error
        await load.more()
    await mine.settled("in")
    assert await mine.held("a") == await mine.held("b") == [*range(1, load.pushed + 1)]


async def test_a_file_that_cannot_be_used_changes_nothing(mine: Composition) -> None:
    await mine.start("mpush", **FAN)
    mine.change("mpush", out=["a", "in"])
    result = await mine.apply()
    assert result.status == 1
    assert f"{mine.directory}/mpush.yaml:" in result.error


async def test_changes_that_need_a_restart_are_refused_before_anything_is_done(mine: Composition) -> None:
    await mine.start("mpush", **FAN)
    await mine.start("vpush", **SEND)
    mine.change("mpush", out=["a", "b", "c"])
    mine.change("vpush", out="farther")
    result = await mine.apply()
    assert result.status == 1
    assert "send: out cannot change while it runs: restart it" in result.error
    assert not await mine.redis.hexists("fan:1", "reload")


async def test_services_that_do_not_run_are_reported(mine: Composition) -> None:
    await mine.start("mpush", **FAN)
    mine.change("mpush", out=["a", "b", "c"])
    mine.change("mdispatch", **TRACK)
    (mine.directory / "Procfile").write_text(
        f"track: python -m services.mdispatch --props {mine.directory}/mdispatch.yaml\n"
    )
    result = await mine.apply()
    assert (result.status, result.error) == (1, "penstock: track: it does not run: start it\n")
    assert await mine.redis.hexists("fan:1", "reloaded")


@pytest.mark.parametrize("done", [0, 1, 2, 3])
async def test_a_call_that_was_killed_between_two_steps_is_followed_by_the_next(
    mine: Composition, load: Producer, done: int
) -> None:
    await mine.start("mpush", **FAN)
    await mine.start("mdispatch", **TRACK)
    async with load.pushing():
        await load.more()
        mine.change("mdispatch", **{"in": "c"}, out="jobs")
        mine.change("mpush", out=["a", "c"])
        await begin(mine, done)
        await load.more()
        assert (await mine.apply()).status == 0
        await load.more()
    await mine.settled("in", "b", "c")
    assert await mine.held("jobs") == await mine.held("a") == [*range(1, load.pushed + 1)]
    assert not await mine.redis.exists("work", "b")
    await holds(mine)


async def begin(mine: Composition, steps: int) -> None:
    """Do what ``penstock apply`` does before it is killed after ``steps`` steps."""
    call = _Call(mine.directory, Options(), None, json=False)
    async with _planned(call) as found:
        assert len(found.steps) == 4
        await write_notes(found)
        for step in found.steps[:steps]:
            await run_step(step, 20)


async def test_a_call_that_is_killed_while_it_waits_for_an_answer_is_followed_by_the_next(
    mine: Composition, load: Producer
) -> None:
    """Only one of two instances got the order, which the registered shape does not show."""
    await mine.start("mpush", **FAN)
    await mine.start("mpush")
    mine.services["mpush"].signal(signal.SIGSTOP)
    async with load.pushing():
        mine.change("mpush", out=["a", "b", "c"])
        async with running("apply", mine.directory, "--yes", redis=None) as process:

            async def is_told() -> bool:
                return bool(await mine.redis.hexists("fan:2", "reload"))

            await eventually(is_told)
            process.send_signal(signal.SIGKILL)
        mine.services["mpush"].signal(signal.SIGCONT)

        async def has_answered() -> bool:
            return bool(await mine.redis.hexists("fan:2", "reloaded"))

        await eventually(has_answered)
        assert not await mine.redis.hexists("fan:1", "reload")
        assert steps((await mine.penstock("plan", "--json")).text) == ["reload"]
        assert (await mine.apply()).status == 0
        assert await mine.redis.hexists("fan:1", "reloaded")
        assert (await mine.penstock("plan", "--check")).status == 0
        before = load.pushed
        await load.more()
    await mine.settled("in")
    assert sorted(await mine.held("a")) == [*range(1, load.pushed + 1)]
    assert {*await mine.held("c")} >= {*range(before + 1, load.pushed + 1)}
    await holds(mine)


async def test_without_a_terminal_apply_needs_yes(mine: Composition) -> None:
    result = await mine.penstock("apply")
    assert (
        result.status,
        "cannot ask without a terminal: run penstock plan first, then pass --yes" in result.error,
    ) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--drain", "--drop"], "exclude each other"),
        (["--rename", "a"], "--rename takes two names of lists with = between them"),
        (["--rename", "a=c"], "--rename a: the files do not remove this list; they remove none"),
        (["--backfill", "x=a"], "x is not an output of a service that fans out"),
    ],
)
async def test_options_that_do_not_fit_are_refused(mine: Composition, words: list[str], message: str) -> None:
    mine.change("mpush", **FAN)
    result = await mine.penstock("plan", *words)
    assert (result.status > 0, message in result.error) == (True, True)
