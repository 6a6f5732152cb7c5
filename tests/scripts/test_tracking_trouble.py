"""A key of the wrong type loses no tracked message: the error names it, and work goes on once it is repaired."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha1
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import redis as blocking
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError
from structlog.testing import capture_logs

from common.tracking import completion
from penstock.base.encoding import decoded
from penstock.base.errors import WrongType
from penstock.testing.server import EmbeddedServer
from services.mdispatch import dispatch
from services.mdispatch.dispatch import Dispatch
from services.monitor import sweep
from tests.support.harness import Service, eventually, until
from tests.support.hop import Hop, Start
from tests.support.scripted import failing

REQUEST = b'{"meta":{"id":"a","replyTo":"mine"}}'
ANSWER = b'{"meta":{"id":"a"}}'


@asynccontextmanager
async def wrong(redis: "Redis", key: str) -> AsyncIterator[None]:
    """Replace ``key`` by a string while the block runs, then restore it."""
    there = await redis.exists(key)
    if there:
        await redis.rename(key, "kept")
    await redis.set(key, "not what it should be")
    yield
    await redis.delete(key)
    if there:
        await redis.rename("kept", key)


async def everything(redis: Any) -> dict[str, Any]:
    """Return the DUMP of each key."""
    return {decoded(key): await redis.dump(key) for key in await redis.keys()}


async def refuse(work: Awaitable[object], key: str, kind: str = "list") -> None:
    with pytest.raises(WrongType, match=f"^{key} holds a string, expected a {kind}$"):
        await work


@pytest.mark.parametrize("key", ["in", "pending:1", "out", "demo:dead"])
async def test_requests_wait_until_it_is_repaired(start: Start, redis: Any, key: str) -> None:
    hop = await start(message_capacity=2)
    messages = [b"first", b'{"meta":{"delay":100}}', b'{"meta":{"delay":-1}}', b"last"]
    needed_by_first = key != "demo:dead"
    async with wrong(redis, key):
        if key == "in":
            await refuse(hop.dispatch.take(), key)
        else:
            await refuse(hop.push(*messages), key)
            assert await redis.exists("demo:message:1") == int(not needed_by_first)
            waiting = await redis.llen("in") + (0 if key == "pending:1" else await redis.llen("pending:1"))
            assert waiting == len(messages) - int(not needed_by_first)
    hop = await start()
    await hop.push(*(messages if key == "in" else [b"later"]))
    assert set(await hop.held()) == {b"first", b"last", *([] if key == "in" else [b"later"])}
    assert len(await hop.delayed()) == len(await hop.letters()) == 1


async def test_deaths_that_cannot_be_put_on_record_hold_back_what_the_dead_left(start: Start, redis: Any) -> None:
    await redis.lpush("pending", b"left")
    async with wrong(redis, "demo:deaths"):
        await refuse(start(ordered=True), "demo:deaths", "hash")
        assert await redis.lrange("pending", 0, -1) == [b"left"]
    hop = await start(ordered=True)
    assert await hop.held() == [b"left"]
    assert not await redis.exists("demo:deaths")


async def survivor(redis: Any, id: int) -> None:
    """Adopt what the others have left, as an instance that is killed while it waits."""
    hop = Hop(redis, ordered=True)
    context = hop.context(hop.settings, id=str(id))
    work = asyncio.create_task(Dispatch(context).recover())
    await eventually(lambda: work.done() or context.outage.server_is_full)
    if work.done():
        with pytest.raises((WrongType, OutOfMemoryError)):
            work.result()
    work.cancel()
    await asyncio.wait({work})


async def test_deaths_while_an_instance_waits_for_its_out_are_no_evidence(start: Start, redis: Any) -> None:
    messages = [b"innocent", b"another"]
    await redis.lpush("pending", *messages)
    await redis.hset("demo:lease", "token", 1)
    async with wrong(redis, "out"):
        for id in range(2, 9):
            await survivor(redis, id)
    hop = await start(ordered=True)
    assert (await hop.held(), await hop.letters()) == (messages, [])
    assert not await redis.exists("demo:deaths")


async def test_deaths_while_an_instance_waits_for_room_are_no_evidence(
    start: Start, redis: Any, fill: Callable[[], Awaitable[object]]
) -> None:
    await redis.lpush("pending", b"innocent")
    await redis.hset("demo:lease", "token", 1)
    await fill()
    for id in range(2, 9):
        await survivor(redis, id)
    await redis.config_set("maxmemory", 0)
    hop = await start(ordered=True)
    assert (await hop.held(), await hop.letters()) == ([b"innocent"], [])


async def test_deaths_while_instances_read_a_message_are_evidence(start: Start, redis: Any) -> None:
    await redis.lpush("pending", b"poison", b"innocent")
    for id in range(2, 4):
        hop = Hop(redis, ordered=True)
        await redis.hset(hop.keys.lease, "token", 1)
        dispatch = Dispatch(hop.context(hop.settings, id=str(id)))
        with patch("services.mdispatch.dispatch.parse_request", side_effect=SystemExit), pytest.raises(SystemExit):
            await dispatch.recover()
    hop = await start(ordered=True)
    assert (await hop.held(), [letter["message"] for letter in await hop.letters()]) == ([b"innocent"], [b"poison"])


@pytest.mark.parametrize("field", ["x", "", "2", "nan me", "a b c"])
async def test_a_record_of_deaths_that_somebody_has_changed_blames_nobody(start: Start, redis: Any, field: str) -> None:
    await redis.lpush("pending", b"left")
    await redis.hset("demo:deaths", sha1(b"left").hexdigest(), field)
    hop = await start(ordered=True)
    assert (await hop.held(), await redis.exists("demo:deaths")) == ([b"left"], 0)


@pytest.mark.parametrize("key", ["demo:done", "watcher:pending:demo:1", "demo:dead"])
async def test_reports_wait_until_it_is_repaired(start: Start, redis: Any, key: str) -> None:
    hop = await start()
    await hop.push(b"a", b"b", b"c")
    said = ["1", '{"id":2,"error":"no luck"}', "77", "{"]
    async with wrong(redis, key):
        if key == "demo:done":
            await refuse(hop.finish(), key)
        else:
            before = await everything(redis)
            await refuse(hop.push_done(*said), key)
            after = await everything(redis)
            waiting = {"demo:done", "watcher:pending:demo:1", "demo:held"}
            assert {name for name in after if after[name] != before.get(name)} <= waiting
    hop = Hop(redis)
    await hop.push_done(*(said if key == "demo:done" else ["3"]))
    counts = {"done": 1 if key == "demo:done" else 2, "failed": 1, "done:unknown": 1, "dead": 1}
    assert (await hop.counts()).items() >= counts.items()


@pytest.mark.parametrize("key", ["res", "pending:answers:1", "demo:dead"])
async def test_answers_wait_until_it_is_repaired(start: Start, redis: Any, key: str) -> None:
    hop = await start()
    await hop.push(REQUEST, REQUEST)
    async with wrong(redis, key):
        if key == "res":
            await refuse(hop.answers.take(1), key)
        else:
            await refuse(hop.answer(ANSWER), key)
    hop = await start()
    await hop.answer(*[ANSWER] * (2 if key == "res" else 1))
    assert await hop.held("mine") == [ANSWER] * 2


@pytest.mark.parametrize("key", ["out", "demo:dead"])
async def test_due_messages_wait_until_it_is_repaired(start: Start, redis: Any, key: str) -> None:
    hop = await start(message_timeout=10, backoff_base=0)
    await hop.push(b"to be retried", b"to be buried", b"to be forgotten", b'{"meta":{"delay":5}}')
    await hop.push_done({"id": 2, "error": "no luck", "retry": False})
    await redis.delete("demo:message:3")
    await hop.advance(10)
    async with wrong(redis, key):
        before = await everything(redis)
        await refuse(hop.sweep(), key)
        assert await everything(redis) == before
    await hop.sweep()
    assert len(await hop.held()) == 5
    assert (await hop.counts()).items() >= {"timeout": 1, "retry": 1, "dead": 1, "expired": 1, "delivered": 4}.items()


async def test_scripts_that_the_server_forgot_are_sent_again(start: Start, redis: Any) -> None:
    hop = await start(message_timeout=10, backoff_base=0)

    async def forgetting(*work: Callable[[], Awaitable[Any]]) -> None:
        for each in work:
            await redis.script_flush()
            await each()

    for _ in range(2):
        await forgetting(
            lambda: hop.push(REQUEST, b"hello", b"hello"),
            lambda: hop.answer(ANSWER),
            lambda: hop.push_done({"xid": "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d", "touch": 5}),
            lambda: hop.push_done("aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d"),
            lambda: hop.advance(10),
            hop.sweep,
        )
    counts = {
        "taken": 6,
        "delivered": 6,
        "registered": 6,
        "done": 4,
        "answers": 2,
        "touched": 2,
        "timeout": 3,
        "retry": 3,
    }
    assert await hop.counts() == counts
    assert await hop.held("mine") == [ANSWER] * 2


def test_what_one_loop_cannot_settle_is_tried_about_once_a_second_though_another_loop_works(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    settings = {"redis": server.url, "redis_namespace": "demo", "in_": "in", "pending": "pending", "out": "work"}
    redis: Any
    with blocking.Redis(port=server.port) as redis:
        redis.flushall()
        with Service("mdispatch", tmp_path / "log", **settings, res="answers") as service:
            redis.lpush("in", ANSWER)
            until(lambda: redis.llen("work"))
            redis.set("demo:metrics:done", "no hash")
            redis.lpush("answers", ANSWER)
            until(lambda: '"waiting"' in service.log_text())
            redis.config_resetstat()
            began = time.monotonic()
            for _ in range(30):
                redis.lpush("in", "another")  # it is dispatched, but that does not show that answers are settled
                time.sleep(0.1)  # timing: about ten messages for one try
            tries = redis.info("commandstats")["cmdstat_client|setname"]["calls"]
            assert tries < 20 * max((time.monotonic() - began) / 3, 1)
            assert (service.log_text().count('"waiting"'), service.log_text().count('"resumed"')) == (1, 0)
            redis.delete("demo:metrics:done")
            until(lambda: redis.hget("demo:metrics:done", "count") == b"1")
            until(lambda: '"resumed"' in service.log_text())
            assert service.stop() == 0


@pytest.mark.parametrize("adopted", [False, True])
async def test_a_message_with_which_the_script_fails_is_named_and_buried_and_holds_up_no_other(
    start: Start, redis: Any, adopted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch is where it was until then."""
    monkeypatch.setattr(dispatch, "_dispatch", failing("mdispatch/dispatch", "local refused = pcall", "subjects"))
    messages = [b"1", b'{"meta":{"id":"bad"}}', b"2", b"3"]
    with capture_logs() as logs:
        if adopted:
            await redis.lpush("pending", *messages)
            hop = await start(ordered=True)
        else:
            hop = await start()
            await hop.push(*messages)
    assert await hop.held() == [b"1", b"2", b"3"]
    letters = await hop.letters()
    assert [(letter["message"], letter["reason"]) for letter in letters] == [(messages[1], "poison")]
    assert letters[0]["error"].startswith("a script failed: ")
    assert {log["message"] for log in logs if "message" in log} == {messages[1]}


async def test_an_entry_with_which_the_script_fails_is_named_and_buried_and_holds_up_no_other(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = await start()
    await hop.push(b"1", b'{"meta":{"id":"bad"}}', b"2")
    monkeypatch.setattr(completion, "_finish", failing("tracking/finish", "local time = call('TIME')", "subjects"))
    with capture_logs() as logs:
        await hop.push_done_batch(b"1", b"bad", b"2")
    assert await hop.in_flight() == ["2"]
    assert [(letter["message"], letter["reason"]) for letter in await hop.letters()] == [(b"bad", "badDone")]
    assert {log["message"] for log in logs if "message" in log} == {b"bad"}


async def test_a_due_message_with_which_the_script_fails_is_named_and_buried_and_holds_up_no_other(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    hop = await start(message_timeout=10, attempts=2, backoff=[0])
    messages = [b"1", b'{"meta":{"id":"bad"}}', b"2"]
    await hop.push(*messages)
    monkeypatch.setattr(sweep, "_sweep", failing("monitor/sweep", "local spent = {", "subjects"))
    with capture_logs() as logs:
        for _ in range(2):
            await hop.advance(10)
            await hop.sweep()
    letters = await hop.letters()
    assert sorted((letter["message"], letter["reason"]) for letter in letters) == [
        (messages[0], "timeout"),
        (messages[2], "timeout"),
        (messages[1], "poison"),
    ]
    assert {log["id"] for log in logs if "id" in log} == {"2"}
    assert (await hop.in_flight(), await hop.delayed()) == ([], [])
    hop.is_sound = False  # the audit takes what is poison for refused before it was registered, as in mdispatch
