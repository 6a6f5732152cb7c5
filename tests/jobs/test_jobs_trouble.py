"""Servers that are away, full, emptied, or hold keys of wrong types. HB-03; HB-D09, HB-D12, HB-D18."""

import asyncio
import os
import signal
from functools import partial
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.errors import PenstockError, Unavailable, WrongType
from penstock.jobs import DISTRIBUTED, Attempt, Jobs, settlement
from penstock.testing.server import EmbeddedServer
from tests.jobs.given import Held, calls, completed, consumer, dead, look_every, pending, renew_every, send, working
from tests.support.harness import PATIENCE, eventually


async def commands(redis: Any) -> int:
    found: int = (await redis.info("stats"))["total_commands_processed"]
    return found


async def test_HB_D18_groups_are_made_again_after_FLUSHALL(jobs: Jobs, redis: Any) -> None:
    """Of streams that are read alone, too; and the server is not kept busy."""
    worker, held = consumer(concurrency=3), Held()
    held.let()
    for stream in "st":
        worker.job(stream)(held)
    async with working(jobs, worker):
        await send(jobs, 1)
        await eventually(partial(completed, redis, 1))
        for _ in range(2):
            await redis.flushall()
            for stream in "st":
                await send(jobs, 2, stream)
            for stream in "st":
                await eventually(partial(completed, redis, 2, stream))
        before = await commands(redis)
        await asyncio.sleep(1)  # timing: if it were kept busy, there would be thousands
        assert await commands(redis) - before < 100


async def test_HB_D18_a_job_in_hand_at_FLUSHALL_does_not_stop_the_others(jobs: Jobs, redis: Any) -> None:
    worker, held = consumer(concurrency=1), Held()
    worker.job("s")(held)
    async with working(jobs, worker):
        await send(jobs, 1)
        await eventually(lambda: held.begun)
        await redis.flushall()
        held.let()
        await eventually(lambda: held.ended)
        await send(jobs, 3)
        await eventually(partial(completed, redis, 3))


@pytest.mark.parametrize("member", ["", "t1 {", "t1 7", "t1 []", 't1 ["job"]', 't1 [["job"], "7"]'])
async def test_a_delayed_job_that_is_none_stays_and_stops_no_other(jobs: Jobs, redis: Any, member: str) -> None:
    worker, held = consumer(), Held()
    held.let()
    worker.job("s")(held)
    await redis.zadd("hfxbus:later:s", {member: 1})
    async with working(jobs, worker):
        await send(jobs, 2)
        await eventually(partial(completed, redis, 2))
        await eventually(partial(redis.zcount, "hfxbus:later:s", "+inf", "+inf"))
    assert await redis.zrange("hfxbus:later:s", 0, -1, withscores=True) == [(member.encode(), float("inf"))]


@pytest.mark.parametrize("key", ["str:s", "wait:s:g", "tries:s:g", "later:s", "dead:s", "done:s", "forward:s:g"])
async def test_a_key_of_the_wrong_type_stops_no_other_stream_and_can_be_repaired(
    jobs: Jobs, redis: Any, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_every(monkeypatch, 0.125)
    worker, found = consumer(concurrency=4, attempts=2), list[str]()
    for stream in "st":

        @worker.job(stream)
        async def process(job: Attempt) -> None:
            found.append(job.stream)
            if job.number == 1:
                raise ValueError("no")

    await redis.set(f"hfxbus:{key}", "x")
    async with working(jobs, worker):
        await send(jobs, 2, "t")
        await eventually(partial(completed, redis, 2, "t"))
        if key in ("str:s", "later:s"):
            with pytest.raises(WrongType, match=key):
                await jobs.producer().send("s", delay=60 if key == "later:s" else 0)
        before = await commands(redis)
        await asyncio.sleep(0.5)  # timing: if it were kept busy, there would be thousands
        assert await commands(redis) - before < 200
        await redis.delete(f"hfxbus:{key}")
        await send(jobs, 2)
        await eventually(partial(completed, redis, 2))
    assert await pending(redis) == []


async def test_a_result_goes_where_a_key_of_the_wrong_type_was(jobs: Jobs, redis: Any) -> None:
    worker = consumer()

    @worker.job("s", values=["in"], result="out")
    async def process(job: Attempt) -> list[Any]:
        return [job.values["in"]]

    await redis.lpush("hfxbus:job:J0:in", "x")
    await redis.lpush("hfxbus:job:J0:out", "x")
    async with working(jobs, worker):
        await send(jobs, 1)
        await eventually(partial(completed, redis, 1))
    assert await jobs.job("J0").get("out").pull() == [[None]]


async def test_values_that_cannot_be_read_make_a_dead_job_at_once(jobs: Jobs, redis: Any) -> None:
    worker = consumer(attempts=5)

    @worker.job("s")
    async def process(job: Attempt) -> None:
        await job.get("in").pull()

    async with working(jobs, worker):
        sent = await jobs.producer().send("s", {"in": b"\xff"}, wait_for=["g"])
        assert (await sent.finished(PATIENCE))["g"].error["name"] == "Unreadable"
    assert [letter["attempts"] for letter in await dead(redis)] == ["1"]


async def test_a_full_server_refuses_what_is_new_and_lets_jobs_end(redis_url: str, redis: Any, fill: Any) -> None:
    """What is to be settled waits until there is room; nothing is done twice."""
    worker, held = consumer(concurrency=3, attempts=2), Held()
    begun = list[str]()

    @worker.job("s")
    async def process(job: Attempt) -> None:
        begun.append(job.id)
        await held(job)
        if job.id == "J1" and job.number == 1:
            raise ValueError("no")

    async with Jobs(redis_url, patience=0.3) as jobs, Jobs(redis_url, patience=30) as patient:
        async with working(patient, worker):
            await send(patient, 3)
            await eventually(lambda: len(begun) == 3)
            await fill()
            for call in (lambda: jobs.producer().send("s"), lambda: jobs.job().set("a", 1).push()):
                with pytest.raises(Unavailable):
                    await call()
            held.let()
            await eventually(lambda: worker.running == 0)
            await asyncio.sleep(0.3)  # timing: nothing may happen
            await redis.config_set("maxmemory", 0)
            await eventually(partial(completed, redis, 3))
        assert sorted(begun) == ["J0", "J1", "J1", "J2"]
        assert await pending(redis) == []


async def test_a_stream_is_paused_and_resumed_while_the_server_is_full(redis_url: str, redis: Any, fill: Any) -> None:
    async with Jobs(redis_url, patience=0.3) as jobs:
        await fill()
        await jobs.pause("s")
        assert await redis.exists("hfxbus:paused:s")
        await jobs.play("s")
        assert not await redis.exists("hfxbus:paused:s")


async def test_a_server_that_was_away_is_used_again(server: EmbeddedServer) -> None:
    """Jobs in hand are settled, those sent meanwhile are there; a stop does not wait for the server without end."""
    with EmbeddedServer(aof=True) as own:
        async with Jobs(own.url, patience=3_600) as jobs, Redis.from_url(own.url) as redis:
            worker, held = consumer(concurrency=2), Held()
            worker.job("s")(held)
            async with working(jobs, worker):
                await send(jobs, 1)
                await eventually(lambda: held.begun)
                await asyncio.to_thread(own.kill)
                sending = asyncio.create_task(send(jobs, 5))
                held.let()
                await asyncio.sleep(0.5)  # timing: it is the outage
                await asyncio.to_thread(own.start)
                await sending
                await eventually(partial(completed, redis, 6))
                assert len(held.begun) == 6
                await asyncio.to_thread(own.kill)
                await asyncio.sleep(0.1)  # timing: it may have noticed


async def test_HB_03_HB_D12_everything_is_disconnected_at_the_end(redis_url: str, redis: Any) -> None:
    """Also with a read that waits, and a job in hand that does not end."""
    async with asyncio.timeout(PATIENCE):
        async with Jobs(redis_url) as jobs:
            worker, held = consumer(stop_timeout=0.1), Held()
            worker.job("s", deadline=None)(held)
            await send(jobs, 1)
            task = asyncio.create_task(jobs.run(worker))
            await eventually(lambda: held.begun)
            sent = await jobs.producer().send("s", wait_for=["g"])
        await task
    with pytest.raises(PenstockError):
        await jobs.run(worker)
    assert sent.entry
    await eventually(lambda: _alone(redis))


async def _alone(redis: Any) -> bool:
    return not [each for each in await redis.client_list() if each["name"].startswith("penstock-jobs")]


async def test_HB_41_a_server_that_is_away_is_ejected_and_readmitted_and_nothing_is_lost(redis: Any) -> None:
    """Distributed: others go on meanwhile, also if the one that is away publishes the completions."""
    with EmbeddedServer(aof=True) as one, EmbeddedServer(aof=True) as other:
        async with Jobs(one.url, other.url, patience=30) as jobs:
            worker, begun = consumer(concurrency=4, route=DISTRIBUTED), list[str]()

            @worker.job("a")  # its completions are the second server's
            async def process(job: Attempt) -> None:
                begun.append(job.id)

            async with working(jobs, worker):
                producer = jobs.producer("P")
                sent = [await producer.send("a", jobs.job(f"J{number}"), route=DISTRIBUTED) for number in range(10)]
                assert len({jobs.routes.place(each.job.id) for each in sent}) == 2
                await eventually(lambda: len(begun) == 10)
                await asyncio.to_thread(other.kill)
                await eventually(lambda: jobs.nodes[1].is_away)
                async with asyncio.timeout(PATIENCE):
                    sent += [await producer.send("a", route=DISTRIBUTED) for _ in range(10)]
                assert {jobs.routes.place(each.job.id) for each in sent[10:]} == {0}
                pinned = asyncio.create_task(producer.send("a", jobs.job(_id_at(jobs, 1)), route=DISTRIBUTED))
                await eventually(lambda: len(begun) == 20)
                async with Redis.from_url(one.url) as first:
                    await eventually(partial(_is_settled, first))  # though nobody publishes
                assert len(begun) == 20
                await asyncio.to_thread(other.start)
                sent.append(await pinned)
                async with asyncio.timeout(PATIENCE):
                    for each in sent:
                        assert set(await producer.finished("a", each.job.id, ["g"])) == {"g"}
                await eventually(lambda: not jobs.nodes[1].is_away)
                more = [await producer.send("a", route=DISTRIBUTED) for _ in range(20)]
                assert len({jobs.routes.place(each.job.id) for each in more}) == 2
                await eventually(lambda: len(begun) == 41)
            assert sorted(begun) == sorted(each.job.id for each in sent + more)
            async with Redis.from_url(other.url) as second:
                assert await second.xlen("hfxbus:done:a") == 41


async def test_a_job_is_sent_and_waited_for_though_the_server_of_its_completions_is_away() -> None:
    """With ``DISTRIBUTED`` it is on another one; its completion is heard when that of the stream is back."""
    with EmbeddedServer(aof=True) as one, EmbeddedServer(aof=True) as other:
        async with Jobs(one.url, other.url, patience=30) as jobs:
            worker, held = consumer(route=DISTRIBUTED), Held()
            held.let()
            worker.job("a")(held)
            await eventually(lambda: jobs.nodes[1].is_up)
            await asyncio.to_thread(other.kill)
            await eventually(lambda: jobs.nodes[1].is_away)
            async with working(jobs, worker):
                sending = jobs.producer().send("a", wait_for=["g"], route=DISTRIBUTED)
                sent = asyncio.create_task(sending)
                await eventually(lambda: held.ended)
                await asyncio.to_thread(other.start)
                assert set(await (await sent).finished(PATIENCE)) == {"g"}


async def _is_settled(redis: Any) -> bool:
    return await pending(redis, "a") == []


def _id_at(jobs: Jobs, place: int) -> str:
    return next(id for id in map(str, range(100)) if jobs.routes.place(id) == place)


async def test_completions_are_published_once_on_the_server_of_the_stream(two: Jobs, servers: list[Any]) -> None:
    """By two consumers of a group at once, that read another server."""
    workers, begun = [consumer(route="concat", concurrency=5) for _ in range(2)], list[str]()
    for worker in workers:

        @worker.job("a")
        async def process(job: Attempt) -> None:
            begun.append(job.id)

    async with two.producer().completions("a") as heard, working(two, *workers):
        sent = [await two.producer().send("a", route="concat") for _ in range(200)]
        await eventually(lambda: _many(servers[1], 200))
        await asyncio.sleep(0.2)  # timing: none may come twice
        ids = [heard.get_nowait().job for _ in range(heard.qsize())]
    assert sorted(ids) == sorted(each.job.id for each in sent) == sorted(begun)
    assert await servers[0].xlen("hfxbus:forward:a:g") == 0


async def _many(redis: Any, many: int) -> bool:
    return bool(await redis.xlen("hfxbus:done:a") >= many)


async def test_a_hung_server_delays_a_send_no_longer_than_patience(server: EmbeddedServer) -> None:
    with EmbeddedServer() as own:
        async with Jobs(own.url, patience=1) as jobs:
            await jobs.producer().send("s")
            os.kill(own.pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(PATIENCE):
                    with pytest.raises(PenstockError):
                        await jobs.producer().send("s")
            finally:
                os.kill(own.pid, signal.SIGCONT)


async def test_an_idle_consumer_asks_seldom(jobs: Jobs, redis: Any) -> None:
    worker = consumer()
    worker.job("s")(Held())
    async with working(jobs, worker):
        await eventually(lambda: _is_idle(redis))
        before = await calls(redis)
        await asyncio.sleep(2)  # timing: a slow machine asks not more often
        assert await calls(redis) - before <= 6


async def _is_idle(redis: Any) -> bool:
    """Return whether nothing was asked for a while, but at least once."""
    before = await calls(redis)
    await asyncio.sleep(0.3)  # timing: too short a while is a few calls more
    return 0 < before == await calls(redis)


async def test_jobs_on_one_server_are_renewed_while_another_one_is_away(
    redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls to the one that is away wait for as long as patience says."""
    renew_every(monkeypatch, 0.1)
    with EmbeddedServer() as one, EmbeddedServer() as other:
        async with Jobs(one.url, other.url, patience=30) as jobs, Redis.from_url(one.url) as first:
            worker, held = consumer(concurrency=4, route=DISTRIBUTED), Held()
            worker.job("s")(held)
            async with working(jobs, worker):
                for place in range(2):
                    await jobs.producer().send("s", jobs.job(_id_at(jobs, place)), route=DISTRIBUTED)
                await eventually(lambda: len(held.begun) == 2)
                await asyncio.to_thread(other.kill)
                await eventually(lambda: jobs.nodes[1].is_away)
                for _ in range(3):
                    [(entry, _)] = await pending(first)
                    await first.xclaim("hfxbus:str:s", "hfxbus:csr:g", worker.id, 0, [entry], idle=30_000, justid=True)
                    await eventually(partial(_is_renewed, first))
                await asyncio.to_thread(other.start)
                held.let()


async def _is_renewed(redis: Any) -> bool:
    [found] = await redis.xpending_range("hfxbus:str:s", "hfxbus:csr:g", "-", "+", 9)
    return bool(found["time_since_delivered"] < 30_000)


async def test_jobs_whose_values_are_on_a_server_that_is_away_wait_and_lose_no_attempt(redis: Any) -> None:
    """Others go on meanwhile."""
    with EmbeddedServer(aof=True) as one, EmbeddedServer(aof=True) as other:
        async with Jobs(one.url, other.url, routes={"s": 0}, patience=0.2) as jobs:
            worker, found = consumer(route="s", attempts=1), list[tuple[str, int, bytes | None]]()

            @worker.job("s", values=["in"])
            async def process(job: Attempt) -> None:
                found.append((job.id, job.number, job.values["in"]))

            here, there = _id_at(jobs, 0), _id_at(jobs, 1)
            for id in (there, here):
                await jobs.producer().send("s", jobs.job(id).set("in", LONG))
            await asyncio.to_thread(other.kill)
            await eventually(lambda: jobs.nodes[1].is_away)
            async with working(jobs, worker), Redis.from_url(one.url) as first:
                await eventually(lambda: found == [(here, 1, LONG)])
                await eventually(partial(_waits, first))
                await asyncio.to_thread(other.start)
                await eventually(lambda: found[1:] == [(there, 1, LONG)])
                await eventually(partial(_all_settled, first))
                assert await dead(first) == []


@pytest.mark.parametrize("form", ["deadline", "patience", "thread", "batch"])
async def test_a_processor_that_waits_for_the_server_of_its_values_loses_no_attempt(
    redis: Any, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its deadline or its patience ends first."""
    monkeypatch.setattr("penstock.jobs.in_hand.AWAY_SECONDS", 0.05)
    patience, deadline = (0.1, 30) if form == "patience" else (30, 0.3)  # timing: what ends first does not matter
    with EmbeddedServer(aof=True) as one, EmbeddedServer(aof=True) as other:
        async with Jobs(one.url, other.url, routes={"s": 0}, patience=patience) as jobs:
            worker, found = consumer(route="s", attempts=1), list[tuple[int, bytes | None]]()
            begun, loop = list[str](), asyncio.get_running_loop()

            async def process(job: Attempt) -> None:
                begun.append(job.id)
                found.append((job.number, *await job.get("in", bytes).pull()))

            if form == "batch":

                @worker.batch("s", 10, deadline=deadline)
                async def process_all(attempts: list[Attempt]) -> None:
                    await asyncio.gather(*map(process, attempts))
            elif form == "thread":

                @worker.job("s", deadline=deadline)
                def process_in_thread(job: Attempt) -> None:
                    asyncio.run_coroutine_threadsafe(process(job), loop).result()
            else:
                worker.job("s", deadline=deadline)(process)
            await jobs.producer().send("s", jobs.job(_id_at(jobs, 1)).set("in", LONG))
            await asyncio.to_thread(other.kill)
            await eventually(lambda: jobs.nodes[1].is_away)
            async with working(jobs, worker), Redis.from_url(one.url) as first:
                await eventually(lambda: begun)
                if form != "thread":  # which cannot be cancelled
                    await eventually(lambda: len(begun) > 1)
                await asyncio.to_thread(other.start)
                await eventually(lambda: (1, LONG) in found)
                await eventually(partial(_all_settled, first))
                assert {number for number, _ in found} == {1}
                assert await dead(first) == []


LONG = b"x" * 1_000


async def _waits(redis: Any) -> bool:
    return bool(await redis.zcard("hfxbus:wait:s:g"))


async def _all_settled(redis: Any) -> bool:
    return await pending(redis) == []


async def test_a_repeated_job_has_its_values_where_consumers_read_them(two: Jobs) -> None:
    """On the server of its id, which is another one every time."""
    worker, found = consumer(route="s", concurrency=5), dict[str, Any]()

    @worker.job("s")
    async def process(job: Attempt) -> None:
        [found[job.id]] = await job.get("in").pull()

    async with working(two, worker):
        await two.repeats.set("r", "s", {"in": 7}, every=0.1)
        await eventually(lambda: len({two.routes.place(id) for id in found}) == 2)
    assert set(found.values()) == {7}


async def test_outcomes_that_wait_for_a_full_server_are_renewed_for_longer_than_patience(
    redis_url: str, redis: Any, fill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else does the jobs again meanwhile, and no attempt is counted."""
    renew_every(monkeypatch, 0.1)
    look_every(monkeypatch, 0.1)
    monkeypatch.setattr(settlement, "AGAIN_SECONDS", 0.01)
    one, other, held = consumer(concurrency=3), consumer(concurrency=3), Held()
    one.job("s", result="out")(held)
    other.job("s", result="out")(held)
    async with Jobs(redis_url, patience=0.1) as jobs:
        await send(jobs, 3)
        async with working(jobs, one, other):
            await eventually(lambda: len(held.begun) == 3)
            await fill()
            held.let()
            await eventually(lambda: one.running == other.running == 0)
            for _ in range(5):
                entries = {entry: owner for entry, owner, _ in await in_hand(redis)}
                assert len(entries) == 3
                for entry, owner in entries.items():
                    await redis.xclaim("hfxbus:str:s", "hfxbus:csr:g", owner, 0, [entry], idle=50_000, justid=True)
                await eventually(partial(are_fresh, redis))
            assert len(held.begun) == 3
            await redis.config_set("maxmemory", 0)
            await eventually(partial(completed, redis, 3))
            assert await pending(redis) == []
    assert [number for _, number in held.begun] == [1, 1, 1]


async def in_hand(redis: Any) -> list[tuple[bytes, bytes, int]]:
    """Return entry, owner, and the milliseconds since it was renewed, of each job in hand."""
    found = await redis.xpending_range("hfxbus:str:s", "hfxbus:csr:g", "-", "+", 9)
    return [(each["message_id"], each["consumer"], each["time_since_delivered"]) for each in found]


async def are_fresh(redis: Any) -> bool:
    return all(idle < 50_000 for *_, idle in await in_hand(redis))


async def test_a_consumer_that_lost_a_job_whose_outcome_waited_is_told(
    redis_url: str, redis: Any, fill: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker, held = consumer(), Held()
    worker.job("s", result="out")(held)
    async with Jobs(redis_url, patience=30) as jobs, working(jobs, worker):
        await send(jobs, 1)
        await eventually(lambda: held.begun)
        await fill()
        held.let()
        await eventually(lambda: worker.running == 0)
        [(entry, *_)] = await in_hand(redis)
        await redis.xclaim("hfxbus:str:s", "hfxbus:csr:g", "OTHER", 0, [entry])
        await redis.config_set("maxmemory", 0)
        await eventually(lambda: "others have them" in caplog.text)
    assert [owner for _, owner, _ in await in_hand(redis)] == [b"OTHER"]


async def test_no_job_begins_while_outcomes_wait_for_a_full_server(redis_url: str, redis: Any, fill: Any) -> None:
    """Else they would fill the memory of the consumer, and be done again if it died."""
    worker, begun = consumer(), list[str]()

    @worker.job("s", result="out")
    async def process(job: Attempt) -> None:
        begun.append(job.id)

    async with Jobs(redis_url, patience=30) as jobs:
        await redis.xgroup_create("hfxbus:str:s", "hfxbus:csr:g", "0", mkstream=True)
        await send(jobs, 200)
        await fill()
        async with working(jobs, worker):
            await eventually(lambda: begun)
            await asyncio.sleep(0.5)  # timing: nothing more may begin
            assert len(begun) < 10
            await redis.config_set("maxmemory", 0)
            await eventually(partial(completed, redis, 200))
    assert sorted(begun) == sorted(f"J{number}" for number in range(200))
