"""``context.settle``: a batch is settled as a whole or not at all, whatever happens meanwhile."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from common import settle, settle_ahead
from common.context import Context
from common.process import Process
from common.settings.base import ServiceSettings
from common.settings.fields import setting
from common.settings.roles import In, Outs, Pending, PopTimeout
from common.settle import Batch, Event
from penstock.accounting.audit import Audit, audit
from penstock.base.errors import Fenced, WrongCall
from penstock.base.keys import Keys
from penstock.core.script import Script
from tests.support.harness import eventually
from tests.support.scripted import failing

KEYS = Keys("demo")
Run = Callable[[Context["Settings"]], Awaitable[None]]


class Settings(ServiceSettings):
    service: ClassVar[str] = "sorter"
    buries: ClassVar[bool] = True

    in_: In = "in"
    pending: Pending = "pending"
    out: Outs = setting("list of names", "Where to.", ["a", "b"])
    pop_timeout: PopTimeout = 5


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def serve(redis_url: str, run: Run, namespace: str | None = "demo", **more: Any) -> int:
    settings = Settings(redis=redis_url, redis_namespace=namespace, **more)
    return await asyncio.wait_for(Process(settings, run).serve(), 30)


async def sorted_by_letter(context: Context[Settings], batch: Batch) -> None:
    to = {name: [message for message in batch if message[:1] == name.encode()] for name in ("a", "b")}
    dead = [(message, "noRoute") for message in batch if message[:1] == b"?"]
    await context.settle(batch, to, dead)


def each(act: Callable[[Context[Settings], Batch], Awaitable[None]], until: int, most: int = 500) -> Run:
    """Return a run that acts on each batch and stops after ``until`` messages."""
    seen = 0

    async def run(context: Context[Settings]) -> None:
        nonlocal seen
        async for batch in context.batches(most):
            seen += len(batch)
            await act(context, batch)
            if seen >= until:
                stop()

    return run


async def audited(redis: Any) -> Audit:
    """Return what the audit finds, which is no problem."""
    found = await audit(redis, KEYS)
    assert found
    assert found.holds, found.problems
    return found


async def texts(redis: Any, name: str) -> list[str]:
    """Return the messages of a list as text, oldest first."""
    return [message.decode() for message in reversed(await redis.lrange(name, 0, -1))]


@pytest.mark.parametrize("most", [1, 3, 500])
async def test_each_message_goes_where_it_belongs_and_the_audit_adds_up(redis: Any, redis_url: str, most: int) -> None:
    await redis.lpush("in", "a1", "b1", "?", "a2", "nowhere", "b2", "a1")
    assert await serve(redis_url, each(sorted_by_letter, 7, most)) == 0
    assert (await texts(redis, "a"), await texts(redis, "b")) == (["a1", "a2", "a1"], ["b1", "b2"])
    (letter,) = [json.loads(each) for each in await texts(redis, KEYS.dead)]
    assert (letter["message"], letter["reason"], letter["source"]) == ("?", "noRoute", "in")
    found = await audited(redis)
    assert found.messages == 7
    delivered = {output.name: (output.delivered, output.dead, output.dropped) for output in found.legs}
    assert delivered == {"a": (3, 0, 0), "b": (2, 0, 0), "in": (0, 1, 1)}


async def test_a_forgotten_message_counts_as_dropped_even_beside_copies(redis: Any, redis_url: str) -> None:
    async def act(context: Context[Settings], batch: Batch) -> None:
        await context.settle(batch, {"a": [batch[0], batch[2]], "b": [batch[0]]})

    await redis.lpush("in", "x", "forgotten", "y", "forgotten, too")
    assert await serve(redis_url, each(act, 4)) == 0
    assert await redis.hget(KEYS.metric("dropped"), "count") == b"2"
    await audited(redis)


async def test_messages_may_be_made_anew_and_copied(redis: Any, redis_url: str) -> None:
    async def act(context: Context[Settings], batch: Batch) -> None:
        made = [message.upper() for message in batch]
        await context.settle(batch, {"a": made, "b": [*batch, *made]})

    await redis.lpush("in", "x", "y", "x", "\udcff\n".encode("utf-8", "surrogateescape"))
    assert await serve(redis_url, each(act, 4), None) == 0
    assert await redis.lrange("a", 0, -1) == [b"\xff\n", b"X", b"Y", b"X"]
    assert await redis.lrange("b", 0, -1) == [b"\xff\n", b"X", b"Y", b"X", b"\xff\n", b"x", b"y", b"x"]
    assert not await redis.exists("pending", "in")


async def test_a_pending_list_that_changed_is_read_again(redis: Any, redis_url: str) -> None:
    """For example after an adoption while the batch was being worked on."""
    outcomes: list[tuple[tuple[bytes, ...], bool]] = []

    async def act(context: Context[Settings], batch: Batch) -> None:
        if not outcomes:
            await redis.rpush(context.pending("pending"), "a0")
        outcomes.append(((*batch,), await context.settle(batch, {"a": batch})))

    await redis.lpush("in", "a1", "a2")
    assert await serve(redis_url, each(act, 4)) == 0
    assert outcomes == [((b"a1", b"a2"), False), ((b"a0", b"a1", b"a2"), True)]
    assert await texts(redis, "a") == ["a0", "a1", "a2"]


async def test_what_a_dead_instance_had_in_hand_comes_first(redis: Any, redis_url: str) -> None:
    await redis.lpush("in", "a2")
    await redis.lpush("pending:7", "a1")
    await redis.zadd(KEYS.owners, {"7": 1})
    assert await serve(redis_url, each(sorted_by_letter, 2)) == 0
    assert await texts(redis, "a") == ["a1", "a2"]
    assert not await redis.exists("pending:7")


async def test_a_batch_ends_with_the_message_that_makes_it_large(redis: Any, redis_url: str) -> None:
    sizes: list[int] = []

    async def run(context: Context[Settings]) -> None:
        async for batch in context.batches(size=100_000):
            sizes.append(len(batch))
            await context.settle(batch, {"a": batch})
            if sum(sizes) == 7:
                stop()

    await redis.lpush("in", *[b"a" * 40_000] * 7)
    assert await serve(redis_url, run) == 0
    assert sizes == [3, 3, 1]


async def test_nothing_is_done_while_a_list_is_of_the_wrong_type(redis: Any, redis_url: str) -> None:
    attempts = 0

    async def act(context: Context[Settings], batch: Batch) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 5:
            await redis.delete("b")
        await context.settle(batch, {"a": batch, "b": batch}, [(batch[0], "also")])

    await redis.set("b", "no list")
    await redis.lpush("in", "x")
    with capture_logs() as logs:
        assert await serve(redis_url, each(act, 5)) == 0
    assert [line["event"] for line in logs].count("waiting") == 1, "reading a batch ends no outage"
    assert (await texts(redis, "a"), await texts(redis, "b"), await redis.llen(KEYS.dead)) == (["x"], ["x"], 1)
    assert await redis.hget(KEYS.metric("delivered"), "count") == b"2"


async def test_events_are_written_with_the_batch_or_not_at_all(redis: Any, redis_url: str) -> None:
    settled: list[bool] = []

    async def act(context: Context[Settings], batch: Batch) -> None:
        if not settled:
            await redis.rpush(context.pending("pending"), "a0")
        events = [Event("delivered", id=str(number), queue="a") for number, _ in enumerate(batch)]
        settled.append(await context.settle(batch, {"a": batch}, events=events))

    await redis.lpush("in", "a1")
    assert await serve(redis_url, each(act, 3)) == 0
    assert settled == [False, True]
    ((_, entry),) = await redis.xrange(KEYS.events)
    assert (entry[b"event"], entry[b"id"], entry[b"count"]) == (b"delivered", b"0\n1", b"2")


async def test_a_caller_without_the_lease_settles_nothing(redis: Any, redis_url: str) -> None:
    async def act(context: Context[Settings], batch: Batch) -> None:
        if await redis.hget(KEYS.lease, "owner") == b"1":
            await redis.hset(KEYS.lease, mapping={"owner": "2", "token": "2", "expires": 0})
            with pytest.raises(Fenced, match="demo:lease"):
                await context.settle(batch, {"a": batch})
            assert await redis.llen("a") == 0
        stop()

    await redis.lpush("in", "a1")
    assert await serve(redis_url, each(act, 1), ordered=True) == 1
    assert await redis.lrange("pending", 0, -1) == [b"a1"]


async def test_a_call_that_comes_after_its_batch_was_settled_settles_no_other(redis: Any, redis_url: str) -> None:
    """As after a cut: the next batch has the same number of messages, and an equal oldest one."""
    await redis.lpush("in", "beat", "1", "2")
    late: list[tuple[Any, ...]] = []

    async def act(context: Context[Settings], batch: Batch) -> None:
        run = context.run_unless_full

        async def kept(script: Script, *more: Any, **named: Any) -> Any:
            late.append((script, named))
            return await run(script, *more, **named)

        if not late:
            context.run_unless_full = kept  # type: ignore[method-assign]
            await context.settle(batch, {"a": [batch[0]]})
            context.run_unless_full = run  # type: ignore[method-assign]
            await redis.lpush("in", "beat", "3", "4")
            return
        script, named = late[0]
        assert await script(redis, **named) == 0
        assert await redis.lrange(context.pending("pending"), 0, -1) == [b"4", b"3", b"beat"]
        await context.settle(batch, {"b": batch})

    assert await serve(redis_url, each(act, 6)) == 0
    assert (await texts(redis, "a"), await texts(redis, "b")) == (["beat"], ["beat", "3", "4"])


async def test_a_service_that_makes_several_of_one_is_conserved(redis: Any, redis_url: str) -> None:
    async def act(context: Context[Settings], batch: Batch) -> None:
        await context.settle(batch, {"a": [b"%b/%d" % (message, n) for message in batch for n in range(3)]})

    await redis.lpush("in", "x", "y")
    assert await serve(redis_url, each(act, 2)) == 0
    await audited(redis)
    await redis.hincrby(KEYS.metric("taken"), "a", 1)
    found = await audit(redis, KEYS)
    assert found
    assert not found.holds


async def test_no_counter_and_no_stream_stops_a_settlement_halfway(redis: Any, redis_url: str) -> None:
    await redis.hset(KEYS.metric("missing"), "count", "abc")
    await redis.execute_command("XADD", KEYS.events, f"{2**64 - 1}-{2**64 - 1}", "a", "b")

    async def act(context: Context[Settings], batch: Batch) -> None:
        await redis.hset(KEYS.held, context.pending("pending"), 100)
        await context.settle(batch, {"a": batch}, events=[Event("done\nforged", id="7\n8") for _ in batch])

    await redis.lpush("in", "x", "y")
    assert await serve(redis_url, each(act, 2)) == 0
    assert await texts(redis, "a") == ["x", "y"]


async def test_words_of_an_event_stay_in_their_line(redis: Any, redis_url: str) -> None:
    async def act(context: Context[Settings], batch: Batch) -> None:
        await context.settle(batch, events=[Event("done\nforged", id="7\n8"), Event("seen", id="9")])

    await redis.lpush("in", "x")
    assert await serve(redis_url, each(act, 1)) == 0
    ((_, entry),) = await redis.xrange(KEYS.events)
    assert (entry[b"event"], entry[b"id"], entry[b"count"]) == (b"done\\nforged\nseen", b"7\\n8\n9", b"2")


async def test_a_full_server_is_said_once_though_batches_can_be_read(redis: Any, redis_url: str, fill: Any) -> None:
    attempts = 0

    async def act(context: Context[Settings], batch: Batch) -> None:
        nonlocal attempts
        attempts += 1
        await (fill() if attempts < 4 else redis.config_set("maxmemory", 0))
        await context.settle(batch, {"a": [b"made"]})

    attempts = 0
    await redis.lpush("in", "x")
    with capture_logs() as logs:
        assert await serve(redis_url, each(act, 4)) == 0
    assert [line["event"] for line in logs if line["event"] in ("waiting", "resumed")] == ["waiting", "resumed"]


WRONG: dict[str, Callable[[Context[Settings], Batch], Awaitable[Any]]] = {
    "c is not a list that the settings name": lambda context, batch: context.settle(batch, {"c": batch}),
    "in is not a list that the settings name": lambda context, batch: context.settle(batch, {"in": batch}),
    "takes the Batch itself that": lambda context, batch: context.settle(Batch(batch), {"a": batch}),
    "expected a list of messages": lambda context, batch: context.settle(batch, {"a": batch[0]}),  # type: ignore[dict-item]
    "each of them bytes": lambda context, batch: context.settle(batch, {"a": ["text"]}),  # type: ignore[list-item]
    "expected pairs of a message": lambda context, batch: context.settle(batch, dead=[(batch[0], None)]),  # type: ignore[list-item]
    "events: expected name": lambda context, batch: context.settle(batch, events=[Event("done", id=None)]),  # type: ignore[arg-type]
    "5,001 new messages": lambda context, batch: context.settle(batch, {"a": [b"%d" % n for n in range(5_001)]}),
    "expected a list of messages, each": lambda context, batch: context.settle(batch, {"a": (each for each in batch)}),  # type: ignore[dict-item]
    "list of messages, each of": lambda context, batch: context.settle(batch, {"a": {*batch}}),  # type: ignore[dict-item]
    "history='x'": lambda context, batch: context.settle(batch, history="x"),  # type: ignore[arg-type]
    "and a reason, as text": lambda context, batch: context.settle(batch, dead=[(batch[0], "\udcff")]),
    "id, xid and queue of each, as text": lambda context, batch: context.settle(batch, events=[Event("\udcff")]),
    "demo:dead is not a list that the settings name": lambda context, batch: context.settle(
        batch, {"demo:dead": batch}
    ),
    "3,001 lists": lambda context, batch: context.settle(batch, {f"{n}": [] for n in range(3_001)}),
    "dead letters need redisNamespace": lambda context, batch: context.settle(batch, dead=[(batch[0], "why")]),
}


@pytest.mark.parametrize("reason", WRONG)
async def test_a_wrong_call_is_refused_and_the_batch_stays(redis: Any, redis_url: str, reason: str) -> None:
    refused: list[str] = []

    async def act(context: Context[Settings], batch: Batch) -> None:
        with pytest.raises(WrongCall, match=reason) as caught:
            await WRONG[reason](context, batch)
        refused.append(str(caught.value))

    await redis.lpush("in", "a1")
    assert await serve(redis_url, each(act, 100), None) == 1, "a batch that is not settled ends the service"
    assert len(refused) == 1
    assert await redis.lrange("pending", 0, -1) == [b"a1"]


async def test_batches_need_the_fields_that_they_are_taken_by(redis_url: str) -> None:
    class Bare(ServiceSettings):
        service: ClassVar[str] = "bare"

        in_: In = "in"

    async def run(context: Context[Bare]) -> None:
        async for _ in context.batches():
            pass

    settings = Bare(redis=redis_url)
    assert await asyncio.wait_for(Process(settings, run).serve(), 30) == 1


async def test_the_rights_that_acl_prints_are_enough_and_a_loss_is_seen(redis: Any, redis_url: str) -> None:
    """Messages from BLMOVE are counted by a script of its own: without rights for it, a loss would go unnoticed."""
    rights = Settings(redis=redis_url, redis_namespace="demo").rights()[redis_url]
    await redis.execute_command(*rights.line("sorter").replace(">PASSWORD", ">secret").split())
    await redis.execute_command("ACL", "LOG", "RESET")
    lost = 0

    async def act(context: Context[Settings], batch: Batch) -> None:
        nonlocal lost
        if batch[0] == b"lost":
            lost += await redis.delete(context.pending("pending"))
            stop()
        await context.settle(batch, {"a": batch})

    async def waits() -> bool:
        return bool((await redis.info("clients"))["blocked_clients"])

    async def push() -> None:
        for message in ("a1", "lost"):
            await eventually(waits)
            await redis.lpush("in", message)

    url = redis_url.replace("redis://", "redis://sorter:secret@")
    pushing = asyncio.create_task(push())
    assert await serve(url, each(act, 100)) == 0
    await pushing
    assert lost == 1
    refused = [line["object"] for line in await redis.acl_log() if line["object"] != "client|setinfo"]
    assert refused == []
    found = await audit(redis, KEYS)
    assert found
    assert "pending:1: 1 message was taken and not settled, and gone" in found.problems[0]
    await redis.execute_command("ACL", "DELUSER", "sorter")


async def answer_all(context: Context[Settings], batch: Batch) -> None:
    """Answer what begins with a list's name and a colon to that list; the rest goes to a."""
    answers: dict[str, list[bytes]] = {}
    for message in batch:
        name, colon, _ = message.decode().partition(":")
        if colon:
            answers.setdefault(name, []).append(b"answer to " + message)
    to = {"a": [message for message in batch if b":" not in message]}
    assert await context.settle(batch, to, answers=answers, life=30)


async def test_answers_go_to_lists_that_messages_name_and_the_audit_adds_up(redis: Any, redis_url: str) -> None:
    await redis.lpush("in", "one:1", "a1", "one:2", "two:1")
    assert await serve(redis_url, each(answer_all, 4)) == 0
    assert await texts(redis, "one") == ["answer to one:1", "answer to one:2"]
    assert (await texts(redis, "two"), await texts(redis, "a")) == (["answer to two:1"], ["a1"])
    found = await audited(redis)
    assert {leg.name: (leg.taken, leg.delivered) for leg in found.legs} == {"a": (1, 1), "b": (0, 0), "in": (3, 3)}


async def test_only_a_list_that_an_answer_has_created_gets_an_expiry(redis: Any, redis_url: str) -> None:
    await redis.lpush("lasting", "theirs")
    await redis.lpush("timed", "theirs")
    await redis.expire("timed", 1_000)
    await redis.lpush("in", "lasting:1", "timed:1", "made:1", "made:2")
    assert await serve(redis_url, each(answer_all, 4)) == 0
    assert [await redis.ttl(name) for name in ("lasting", "a")] == [-1, -2]
    assert await redis.ttl("timed") > 900
    assert 0 < await redis.ttl("made") <= 30


async def test_an_answer_for_a_list_of_another_type_is_a_dead_letter(redis: Any, redis_url: str) -> None:
    await redis.set("text", "not a list")
    await redis.lpush("in", "text:1", "a1", "one:1")
    assert await serve(redis_url, each(answer_all, 3)) == 0
    (letter,) = [json.loads(each) for each in await texts(redis, KEYS.dead)]
    assert (letter["message"], letter["reason"]) == ("answer to text:1", "badAnswer")
    assert (await texts(redis, "one"), await texts(redis, "a")) == (["answer to one:1"], ["a1"])
    await audited(redis)


@pytest.mark.parametrize("answers", [{"a": [b"x"]}, {"one": ["text"]}, {"one": b"x"}])
async def test_wrong_answers_are_refused(redis: Any, redis_url: str, answers: Any) -> None:
    async def act(context: Context[Settings], batch: Batch) -> None:
        with pytest.raises(WrongCall):
            await context.settle(batch, {"a": batch}, answers=answers)
        await context.settle(batch, {"a": batch})

    await redis.lpush("in", "x")
    assert await serve(redis_url, each(act, 1)) == 0
    assert await texts(redis, "a") == ["x"]


async def test_a_batch_knows_when_it_was_read_by_the_servers_clock(redis: Any, redis_url: str) -> None:
    times: list[float] = []

    async def act(context: Context[Settings], batch: Batch) -> None:
        times.append(batch.at)
        await context.settle(batch, {"a": batch})

    before, micro = await redis.time()
    await redis.lpush("in", "x")
    assert await serve(redis_url, each(act, 1)) == 0
    after, _ = await redis.time()
    assert before + micro / 1e6 <= times[0] < after + 1


NOTHING = Script(
    "none.lua", "-- Do nothing.\n--\n-- KEYS pending  list  x\n-- Returns 1. Run twice: the same.\nreturn 1\n"
)


async def test_settle_by_takes_the_batch_itself_and_only_within_batches(redis: Any, redis_url: str) -> None:
    async def run(context: Context[Settings]) -> None:
        with pytest.raises(WrongCall, match="takes a batch of batches"):
            await context.settle_by(NOTHING, Batch([b"x"]))
        async for batch in context.batches():
            with pytest.raises(WrongCall, match="takes the Batch itself"):
                await context.settle_by(NOTHING, Batch(batch))
            await context.settle(batch, {"a": batch})
            stop()

    await redis.lpush("in", "x")
    assert await serve(redis_url, run) == 0
    assert await texts(redis, "a") == ["x"]


async def test_settle_by_refuses_a_batch_that_was_read_ahead(redis: Any, redis_url: str) -> None:
    async def run(context: Context[Settings]) -> None:
        async for batch in context.batches(ahead=True):
            with pytest.raises(WrongCall, match="without ahead=True"):
                await context.settle_by(NOTHING, batch)
            await context.settle(batch, {"a": batch})
            stop()

    await redis.lpush("in", "x")
    assert await serve(redis_url, run) == 0
    assert await texts(redis, "a") == ["x"]


FAILING = failing(
    "common/settle_batch",
    "local lists = #outs",
    "call('LRANGE', pending, -plan.count, -1)",
    unless="plan.dead[1] and plan.dead[1][2] == 'poison'",
)


@pytest.mark.parametrize("ahead", [False, True])
async def test_a_message_with_which_the_script_fails_is_named_and_buried_and_holds_up_no_other(
    redis: Any, redis_url: str, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (settle, settle_ahead):
        monkeypatch.setattr(module, "SETTLE", FAILING)
    messages = ["1", "2", "bad", "3", "4"]

    async def run(context: Context[Settings]) -> None:
        async for batch in context.batches(5, ahead=ahead):
            sizes.append(len(batch))
            await context.settle(batch, {"a": batch})
            if await redis.llen("a") == 4 or len(sizes) > 30:
                stop()

    sizes: list[int] = []
    await redis.lpush("in", *messages)
    with capture_logs() as logs:
        assert await serve(redis_url, run) == 0
    assert await texts(redis, "a") == ["1", "2", "3", "4"]
    (letter,) = map(json.loads, await redis.lrange(KEYS.dead, 0, -1))
    assert (letter["message"], letter["reason"]) == ("bad", "poison")
    assert [log["message"] for log in logs if log["event"] == "a script failed" and "message" in log] == [b"bad"] * 3
    assert await redis.exists("in", "pending:1") == 0
    await audited(redis)


async def test_messages_stay_alone_while_nothing_is_settled(
    redis: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pending list that has changed, like a full server, brings the one that fails no nearer."""
    monkeypatch.setattr(settle, "SETTLE", FAILING)
    refused = 0

    async def run(context: Context[Settings]) -> None:
        nonlocal refused
        async for batch in context.batches(5):
            disturbs = batch == (b"1",) and refused < 2
            if disturbs:
                await redis.rpush("pending:1", "stranger")
            done = await context.settle(batch, {"a": batch})
            if disturbs:
                refused += not done
                await redis.rpop("pending:1")
            if await redis.llen("a") == 4:
                stop()

    await redis.lpush("in", "1", "2", "3", "bad", "4")
    with capture_logs() as logs:
        assert await serve(redis_url, run) == 0
    assert refused == 2
    assert await texts(redis, "a") == ["1", "2", "3", "4"]
    assert [log["messages"] for log in logs if log["event"] == "a script failed" and "messages" in log] == [5]


async def test_a_script_that_fails_where_no_message_can_be_buried_ends_the_service_with_the_batch_where_it_was(
    redis: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "SETTLE", FAILING)

    async def run(context: Context[Settings]) -> None:
        async for batch in context.batches(5):
            await context.settle(batch, {"a": batch})

    await redis.lpush("in", "1", "bad")
    assert await serve(redis_url, run, namespace=None) == 1
    assert await texts(redis, "pending") == ["1", "bad"]
