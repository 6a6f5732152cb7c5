"""Producers: what is sent, and how they hear of completions. HB-10 to HB-14; HB-D03 to HB-D07, HB-D14, HB-D19."""

import asyncio
import json
import re
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from penstock.base.errors import Unavailable, WrongCall
from penstock.jobs import Attempt, FinishTimeout, Jobs, Rejected
from tests.jobs.given import Held, consumer, kept, working
from tests.support.harness import PATIENCE, eventually

CHANNEL = "hfxbus:chn:s:P"


async def publish(redis: Any, job: str, group: str, stream: str = "s", **more: object) -> None:
    """Publish a completion as Node does."""
    await redis.publish(f"hfxbus:chn:{stream}:P", json.dumps({"str": stream, "grp": group, "job": job, **more}))


async def test_HB_12_ids_are_16_characters_or_those_of_the_user(jobs: Jobs) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{16}", jobs.job().id)
    assert len({jobs.job().id for _ in range(100)}) == 100
    assert jobs.producer().job("x").id == "x"
    assert re.fullmatch(r"[A-Za-z0-9_-]{16}", jobs.producer().id)
    assert jobs.producer("P").id == "P"


async def test_HB_13_HB_D03_a_job_is_in_the_stream_once_send_returns(jobs: Jobs, redis: Any) -> None:
    """With ``wait_for``, too, whether or not, and however often, anybody waits."""
    producer = jobs.producer("P")
    sent = await producer.send("s", jobs.job("J1"), wait_for=["g"])
    await producer.send("s", jobs.job("J2"))
    for _ in range(2):
        with pytest.raises(FinishTimeout):
            await sent.finished(0.01)
    entries = await redis.xrange("hfxbus:str:s")
    assert [fields for _, fields in entries] == [{b"prd": b"P", b"job": b"J1"}, {b"prd": b"P", b"job": b"J2"}]
    assert entries[0][0].decode() == sent.entry


async def test_HB_13_capped_bounds_a_stream(jobs: Jobs, redis: Any) -> None:
    producer = jobs.producer()
    for _ in range(400):
        await producer.send("s", capped=100)
    assert 100 <= await redis.xlen("hfxbus:str:s") < 300


async def test_HB_D10_HB_D09_values_are_there_with_the_job(jobs: Jobs, redis: Any) -> None:
    """In one step where both are on one server."""
    await jobs.producer().send("s", {"a": 1})  # loads the script
    await redis.config_resetstat()
    await jobs.producer().send("s", {"a": 1, "b": b"\x00\xff"})
    stats = await redis.info("commandstats")
    assert {name: each["calls"] for name, each in stats.items() if name in ("cmdstat_evalsha", "cmdstat_eval")} == {
        "cmdstat_evalsha": 1
    }
    [*_, (_, fields)] = await redis.xrange("hfxbus:str:s")
    assert json.loads(fields[b"keys"]) == ["a", "b"]


async def test_HB_14_finished_has_each_group_with_its_time_or_error(jobs: Jobs) -> None:
    one, other = consumer("g"), consumer("h", attempts=1)

    @one.job("s")
    async def fine(job: Attempt) -> None: ...

    @other.job("s")
    async def bad(job: Attempt) -> None:
        raise ValueError("no")

    before = datetime.now(UTC).replace(microsecond=0)  # what is kept has whole milliseconds
    async with working(jobs, one, other):
        sent = await jobs.producer().send("s", wait_for=["g", "h"])
        found = await sent.finished(PATIENCE)
        assert set(found) == {"g", "h"}
        assert before <= found["g"].at <= datetime.now(UTC)
        assert found["g"].error is None
        assert found["h"].error == {"name": "ValueError", "message": "no"}
        assert await sent.finished(PATIENCE) == found
        with pytest.raises(Rejected, match="h: no") as rejected:
            await sent.finished(PATIENCE, reject=True)
        assert (rejected.value.group, rejected.value.error["message"]) == ("h", "no")
        assert set(rejected.value.completed) == {"g", "h"}
        assert rejected.value.code == rejected.value.errno == "REJECT_JOB_ERROR"


async def test_HB_14_FinishTimeout_has_what_is_completed(jobs: Jobs) -> None:
    worker = consumer()

    @worker.job("s")
    async def fine(job: Attempt) -> None: ...

    async with working(jobs, worker):
        producer = jobs.producer()
        sent = await producer.send("s", wait_for=["g", "nobody"])
        await producer.finished("s", sent.job.id, ["g"], PATIENCE)
        with pytest.raises(FinishTimeout, match="by nobody") as missed:
            await sent.finished(0.05)
        assert [*missed.value.completed] == ["g"]
        assert missed.value.code == missed.value.errno == "FINISH_TIMEOUT"


async def test_HB_D04_two_completions_of_one_group_are_not_those_of_two(jobs: Jobs, redis: Any) -> None:
    producer = jobs.producer("P")
    sent = await producer.send("s", jobs.job("J1"), wait_for=["g", "h"])
    await publish(redis, "J1", "g", err={"message": "no"})
    await publish(redis, "J1", "g")
    await publish(redis, "J1", "stranger")
    await producer.finished("s", "J1", ["stranger"], PATIENCE)  # it has heard all three
    with pytest.raises(FinishTimeout) as missed:
        await sent.finished(0.2)
    assert {group: each.error for group, each in missed.value.completed.items()} == {"g": {"message": "no"}}
    await publish(redis, "J1", "h")
    assert set(await sent.finished(PATIENCE)) == {"g", "h"}


async def test_HB_D05_a_producer_that_was_away_sees_completions(jobs: Jobs, redis_url: str) -> None:
    worker = consumer()

    @worker.job("s")
    async def fine(job: Attempt) -> None: ...

    async with Jobs(redis_url) as others:
        await others.producer("P").send("s", others.job("J1"))
    async with working(jobs, worker):
        await asyncio.sleep(0)
        await eventually(lambda: not worker.running)
        async with Jobs(redis_url) as others:
            assert set(await others.producer("P").finished("s", "J1", ["g"], PATIENCE)) == {"g"}


async def test_HB_D05_a_completion_is_seen_though_the_subscription_was_lost_meanwhile(jobs: Jobs, redis: Any) -> None:
    held = Held()
    worker = consumer()
    worker.job("s")(held)
    async with working(jobs, worker):
        sent = await jobs.producer().send("s", wait_for=["g"])
        await eventually(lambda: held.begun)
        waiting = asyncio.create_task(sent.finished(PATIENCE))
        await redis.execute_command("CLIENT", "PAUSE", 1)  # returns once it is in force
        await redis.client_kill_filter(_type="pubsub")
        held.let()
        assert set(await waiting) == {"g"}


@pytest.mark.parametrize("delay", [0.0, 60.0])
async def test_a_completion_that_was_missed_is_seen_by_a_producer_whose_clock_is_ahead(
    jobs: Jobs, redis: Any, monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 600)
    sent = await jobs.producer().send("s", jobs.job("J1"), wait_for=["g"], delay=delay)
    async with redis.pipeline(transaction=True) as pipe:
        pipe.client_kill_filter(_type="pubsub")
        pipe.xadd("hfxbus:done:s", {"job": "J1", "msg": '{"str":"s","grp":"g","job":"J1","kept":true}'})
        await pipe.execute()
    assert set(await sent.finished(PATIENCE)) == {"g"}


async def test_HB_D05_completion_and_acknowledgement_are_one_step(jobs: Jobs, redis: Any) -> None:
    worker = consumer()

    @worker.job("s")
    async def fine(job: Attempt) -> None: ...

    async with working(jobs, worker):
        await (await jobs.producer("P").send("s", jobs.job("J1"), wait_for=["g"])).finished(PATIENCE)
        assert await kept(redis) == [{"str": "s", "grp": "g", "job": "J1", "kept": True}]
        assert (await redis.xpending("hfxbus:str:s", "hfxbus:csr:g"))["pending"] == 0


async def test_HB_10_HB_D06_each_completion_is_heard_once_by_its_producer(jobs: Jobs, redis: Any) -> None:
    """However many of its jobs wait, and whoever listens to all of the stream on the same connection."""
    producer, other = jobs.producer("P"), jobs.producer("Q")
    async with producer.completions("s") as all_, other.completions("s") as again:
        sent = [await producer.send("s", jobs.job(f"J{number}"), wait_for=["g"]) for number in range(3)]
        mine = await other.send("s", jobs.job("J0"), wait_for=["g"])
        assert await redis.execute_command("PUBSUB", "NUMSUB", CHANNEL) == [CHANNEL.encode(), 1]
        await publish(redis, "J0", "g")
        assert set(await sent[0].finished(PATIENCE)) == {"g"}
        for each in (sent[1], mine):
            with pytest.raises(FinishTimeout):
                await each.finished(0.05)
        found = await all_.get()
        assert (found.stream, found.job, found.group, found.error) == ("s", "J0", "g", None)
        assert (await again.get()).job == "J0"
        assert all_.empty()
        assert again.empty()
    await eventually(lambda: _patterns(redis))


async def _patterns(redis: Any) -> bool:
    return bool(await redis.pubsub_numpat() == 0)


async def test_HB_11_HB_D14_a_listener_gets_completions_of_other_producers(jobs: Jobs, redis: Any) -> None:
    """Also of a stream named ``error``, and none of streams whose names begin alike."""
    async with jobs.producer().completions("error") as heard:
        await publish(redis, "J0", "g", stream="error:x")
        await redis.publish("hfxbus:chn:error:P", "no JSON")
        await publish(redis, "J1", "g", stream="error", err="boom")
        found = await heard.get()
        assert (found.job, found.group, found.error) == ("J1", "g", "boom")


async def test_HB_D07_who_gives_up_waiting_leaves_others_waiting(jobs: Jobs, redis: Any) -> None:
    producer = jobs.producer("P")
    sent = await producer.send("s", jobs.job("J1"), wait_for=["g"])
    again = await producer.send("s", jobs.job("J1"), wait_for=["g"])
    waiting = [asyncio.create_task(each.finished(PATIENCE)) for each in (sent, again)]
    with pytest.raises(FinishTimeout):
        await sent.finished(0.05)
    await publish(redis, "J1", "g")
    for each in waiting:
        assert set(await each) == {"g"}


async def test_HB_D19_names_that_would_break_a_completion_are_refused(jobs: Jobs) -> None:
    producer = jobs.producer()
    for bad in ('a"b', "a\\b", "a\nb", "\0", ""):
        for make in (jobs.job, jobs.producer, consumer, partial(jobs.job().set, value=1)):
            with pytest.raises(WrongCall):
                make(bad)
        for call in (producer.send(bad), producer.send("s", wait_for=[bad]), producer.send("s", key=bad)):
            with pytest.raises(WrongCall):
                await call
    for bad in ("a*", "a?", "[a]"):
        with pytest.raises(WrongCall):
            await producer.send(bad)
        with pytest.raises(WrongCall):
            jobs.producer(bad)


async def test_HB_D19_an_id_with_quotes_of_a_stranger_is_completed_in_valid_JSON(jobs: Jobs, redis: Any) -> None:
    worker = consumer()

    @worker.job("s")
    async def fine(job: Attempt) -> None: ...

    ids = ['a"b', "a\\b", "ü\x01", "\x7f", "日本"]
    for id in ids:
        await redis.xadd("hfxbus:str:s", {"prd": "P", "job": id})
    async with working(jobs, worker):
        await eventually(lambda: _completed(redis, len(ids)))
        assert sorted(each["job"] for each in await kept(redis)) == sorted(ids)


async def _completed(redis: Any, many: int) -> bool:
    return bool(await redis.xlen("hfxbus:done:s") == many)


async def test_completions_in_any_form_of_JSON_count_and_garbage_does_not(jobs: Jobs, redis: Any) -> None:
    sent = await jobs.producer("P").send("s", jobs.job("J1"), wait_for=["g", "h", "i", "j"])
    for garbage in (
        b"",
        b"[]",
        b"5",
        b'"str"',
        b"\xff",
        b'{"str":"s"}',
        b"[" * 100_000,
        b'{"str":5,"grp":"g","job":"J1"}',
        b'{"str":"s","grp":"j","job":"J1","err":1}{}',
    ):
        await redis.publish(CHANNEL, garbage)
    await redis.publish(CHANNEL, '{ "more" : [], "job" : "\\u004a1" , "err": null, "grp":"g","str":"s"}')
    await redis.publish(CHANNEL, '{"str":"s","grp":"h","job":"J1","err":undefined}')  # of Node, for `throw undefined`
    await redis.publish(CHANNEL, '{"str":"s","grp":"i","job":"J1","err":0}')
    await redis.publish(CHANNEL, ' \n{"str":"s","grp":"j","job":"J1"} ')
    found = await sent.finished(PATIENCE)
    assert found["j"].error is None
    assert found["g"].error is None
    assert found["h"].error["name"] == "Error"
    assert found["i"].error == 0


async def test_what_is_not_sent_for_long_raises(jobs: Jobs) -> None:
    """HB-D07: and nothing of it waits on."""
    async with Jobs("redis://127.0.0.1:1", patience=0.3) as away, asyncio.timeout(PATIENCE):
        for groups in ([], ["g"]):
            with pytest.raises(Unavailable):
                await away.producer().send("s", wait_for=groups)
        with pytest.raises(Unavailable):
            await away.producer().finished("s", "J1", ["g"], 3_600)


async def test_calls_that_make_no_sense_are_refused(jobs: Jobs, redis_url: str) -> None:
    producer = jobs.producer()
    for call, told in (
        ({"delay": -1}, "delay=-1: "),
        ({"delay": float("nan")}, "delay=nan: "),
        ({"capped": 0}, "capped=0: "),
        ({"wait_for": "g"}, "wait_for='g': "),
        ({"wait_for": [5]}, "group: .* found 5"),
        ({"job": "text"}, "mapping of values, found str"),
        ({"job": {"page": object()}}, "value 'page': expected a JSON value"),
        ({"job": {"page": 1}, "ttl": 0}, "value 'page': ttl=0"),
    ):
        with pytest.raises(WrongCall, match=told):
            await producer.send("s", **call)
    with pytest.raises(WrongCall, match="wait_for"):
        await (await producer.send("s")).finished()
    with pytest.raises(WrongCall, match="async with"):
        Jobs(redis_url).producer()
