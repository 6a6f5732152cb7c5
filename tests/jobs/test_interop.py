"""Jobs between Node's hfxbus and ours on one server, in all four pairings.

HB-10 to HB-14, HB-20, HB-31, HB-33, HB-35, HB-37; HB-D01, HB-D21.
"""

import asyncio
import json
from base64 import b64decode, b64encode

import pytest

from penstock.jobs import Attempt, Consumer, Jobs
from tests.bus.node import Peer
from tests.jobs.given import working
from tests.jobs.pairs import NODE, PYTHON, STARTS, Pair, Programs, finished, send
from tests.support.harness import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]


def ids(peer: Peer) -> list[str]:
    """Return the ids of the jobs that a consumer has begun."""
    return [event[1] for event in peer.events if event[0] == "job"]


async def pending(pair: Pair, stream: str, group: str) -> int:
    found: int = (await pair.servers[0].xpending(f"hfxbus:str:{stream}", f"hfxbus:csr:{group}"))["pending"]
    return found


async def test_a_job_is_done_and_its_values_come_back(pair: Pair) -> None:
    async with pair.consumer("s", "g", id="C"), pair.producer("s", id="P") as producer:
        value = {"text": "hellö 😀", "numbers": [1, 2.5, None, True], "quote": '"\\'}
        await send(producer, "J1", value, "g", get=["out", "nope"])
        assert await producer.expect("finished", "J1") == ("J1", {"g": "done"}, {"out": {"echo": value}, "nope": None})
        redis = pair.servers[0]
        [(entry, fields)] = await redis.xrange("hfxbus:str:s")
        assert (fields[b"prd"], fields[b"job"]) == (b"P", b"J1")
        assert (
            await redis.get("hfxbus:job:J1:in") == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        )
        assert await pending(pair, "s", "g") == 0
        [group] = await redis.xinfo_groups("hfxbus:str:s")
        assert (group["name"], group["last-delivered-id"]) == (b"hfxbus:csr:g", entry)


async def test_bytes_go_both_ways_as_they_are(pair: Pair) -> None:
    async with pair.consumer("s", "g"), pair.producer("s") as producer:
        raw = bytes(range(256)) * 40
        await send(producer, "J1", {"raw": True}, "g", raw={"bin": b64encode(raw).decode()}, get=[], raw_get=["bout"])
        _, _, values = await producer.expect("finished", "J1", {"g": "done"})
        assert b64decode(values["bout"]["base64"]) == raw[::-1]


async def test_a_rejection_has_name_message_and_code(pair: Pair) -> None:
    async with pair.consumer("s", "g"), pair.producer("s") as producer:
        await send(producer, "J1", {"fail": 'no "good" ü', "code": "E_7"}, "g")
        _, found, _ = await producer.expect("finished", "J1")
        assert (found["g"]["message"], found["g"]["code"]) == ('no "good" ü', "E_7")
        assert found["g"]["name"] == ("Error" if pair.names[1] == NODE else "Exception")
        await send(producer, "J2", {"fail": "no"}, "g", reject=True)
        assert (await producer.expect("failed", "J2"))[1]["g"]["message"] == "no"
        assert await pending(pair, "s", "g") == (2 if pair.names[1] == NODE else 0)  # Node leaves them for ever


async def test_HB_D05_what_any_consumer_completes_is_kept_for_a_producer_that_is_away(pair: Pair) -> None:
    """A consumer of ours, of another group, keeps what Node's only publish."""
    ours = Consumer("ours")

    @ours.job("s")
    async def nothing(job: Attempt) -> None: ...

    async with pair.consumer("s", "g"), Jobs(*pair.urls) as jobs, working(jobs, ours):
        await eventually(lambda: pair.names[1] == PYTHON or _listens(pair))
        async with pair.producer("s", id="P") as producer:
            await send(producer, "J1", {"n": 1})
            await send(producer, "J2", {"fail": "no"})
        back = jobs.producer("P")
        assert (await back.finished("s", "J1", ["g", "ours"], 20))["g"].error is None
        assert (await back.finished("s", "J2", ["g", "ours"], 20))["g"].error["message"] == "no"
        assert await pair.servers[0].xlen("hfxbus:done:s") == 4


async def _listens(pair: Pair) -> bool:
    return bool((await pair.servers[0].pubsub_numpat()) and await pair.servers[0].zcard("hfxbus:keepers:s"))


async def test_a_job_that_takes_too_long_is_rejected_with_DEADLINE_TIMEOUT(pair: Pair) -> None:
    async with pair.consumer("s", "g", deadline=0.2) as consumer, pair.producer("s") as producer:
        await send(producer, "J1", {"hang": True}, "g")
        _, found, _ = await producer.expect("finished", "J1")
        assert found["g"]["code"] == "DEADLINE_TIMEOUT"
        await send(producer, "J2", {"a": 1}, "g")
        await producer.expect("finished", "J2", {"g": "done"})
        assert ids(consumer) == ["J1", "J2"]


async def test_a_producer_that_waits_in_vain_gets_FINISH_TIMEOUT(pair: Pair) -> None:
    async with pair.producer("s") as producer:
        await send(producer, "J1", 1, "g", timeout=0.1)
        await producer.expect("failed", "J1", "FINISH_TIMEOUT")


async def test_each_of_two_groups_gets_each_job_once(pair: Pair) -> None:
    """One group is of the producer's kind, the other one of the second end's."""
    many = 50
    async with (
        pair.consumer("s", "g", concurrency=3) as one,
        pair.consumer("s", "g", concurrency=3) as another,
        pair.beside("s", "h", concurrency=5) as other,
        pair.producer("s") as producer,
    ):
        for number in range(many):
            await send(producer, f"J{number}", {"n": number}, "g", "h")
        wanted = sorted(f"J{number}" for number in range(many))
        found = await finished(producer, *wanted)
        for number in range(many):
            assert found[f"J{number}"] == ({"g": "done", "h": "done"}, {"out": {"echo": {"n": number}}})
        assert sorted(ids(one) + ids(another)) == wanted == sorted(ids(other))


async def test_within_a_group_of_both_kinds_each_job_is_done_once(pair: Pair) -> None:
    many = 60
    async with (
        pair.consumer("s", "g", concurrency=2) as one,
        pair.beside("s", "g", concurrency=2) as other,
        pair.producer("s") as producer,
    ):
        for number in range(many):
            await send(producer, f"J{number}", {"sleep": 0.005}, "g")
        wanted = sorted(f"J{number}" for number in range(many))
        found = await finished(producer, *wanted)
        assert [found[id][0] for id in wanted] == [{"g": "done"}] * many
        assert sorted(ids(one) + ids(other)) == wanted


async def test_names_with_colons_spaces_and_letters_of_all_kinds(pair: Pair) -> None:
    async with pair.consumer("s:t:ü", "g:h i", id="C:1"), pair.producer("s:t:ü", id="P:1") as producer:
        await send(producer, "J:1:😀", 5, "g:h i")
        await producer.expect("finished", "J:1:😀", {"g:h i": "done"}, {"out": {"echo": 5}})
        keys = {b"hfxbus:str:s:t:\xc3\xbc", "hfxbus:job:J:1:😀:in".encode(), "hfxbus:job:J:1:😀:out".encode()}
        assert keys <= set(await pair.servers[0].keys())


async def test_a_prefix_keeps_others_apart(pair: Pair) -> None:
    """HB-01."""
    async with (
        pair.consumer("s", "g", prefix="px"),
        pair.consumer("s", "g") as other,
        pair.producer("s", prefix="px") as producer,
    ):
        await send(producer, "J1", 5, "g")
        await producer.expect("finished", "J1", {"g": "done"})
        assert ids(other) == []
        assert await pair.servers[0].xlen("hfxbus:str:s") == 0


async def test_a_capped_stream_stays_short(pair: Pair) -> None:
    async with pair.producer("s") as producer:
        for number in range(400):
            await producer.send(json.dumps({"id": f"J{number}", "capped": 100}))
        await producer.expect("sent", "J399")
        assert 100 <= await pair.servers[0].xlen("hfxbus:str:s") < 300


async def test_a_group_begins_where_its_consumer_says(pair: Pair) -> None:
    async with pair.producer("s") as producer:
        await send(producer, "J1", 1)
        async with pair.consumer("s", "all", start="0") as everything, pair.consumer("s", "new", start="$") as news:
            await send(producer, "J2", 2, "all", "new")
            await producer.expect("finished", "J2", {"all": "done", "new": "done"})
            assert (ids(everything), ids(news)) == (["J1", "J2"], ["J2"])


async def test_who_follows_gets_no_job_that_was_done(pair: Pair) -> None:
    async with pair.producer("s") as producer:
        async with pair.consumer("s", "g") as first:
            await send(producer, "J1", 1, "g")
            await producer.expect("finished", "J1", {"g": "done"})
            assert ids(first) == ["J1"]
        async with pair.beside("s", "g") as second:
            await send(producer, "J2", 2, "g")
            await producer.expect("finished", "J2", {"g": "done"})
            assert ids(second) == ["J2"]


async def test_a_job_of_a_killed_consumer_is_done_by_ours_and_its_producer_hears_of_it(
    pair: Pair, programs: Programs
) -> None:
    """HB-37, HB-D01. The killed consumer is of the second end's kind, with one job in its hands."""
    helper = await programs.take(PYTHON)
    async with STARTS[pair.names[1]]() as doomed, pair.producer("s") as producer:
        async with doomed.peer("consumer", "s", pair.urls, group="g", id="DEAD") as victim:
            await victim.expect("ready")
            await send(producer, "J0", 0, "g")
            await producer.expect("finished", "J0", {"g": "done"})
            await send(producer, "J1", {"sleep": 0.4}, "g")
            await victim.expect("job", "J1")
            await doomed.kill()
        await asyncio.sleep(0.35)  # timing: so that the first look of the heir finds it
        async with helper.peer("consumer", "s", pair.urls, group="g", claim_after=0.3, attempts=2) as heir:
            await producer.expect("finished", "J1", {"g": "done"}, {"out": {"echo": {"sleep": 0.4}}})
            assert ids(heir) == ["J1"]
            assert await pending(pair, "s", "g") == 0


async def test_what_Node_has_rejected_is_tried_again_by_ours(pair: Pair, programs: Programs) -> None:
    """A rejected job of Node stays pending; a dead letter is invisible to it. HB-38, HB-D21."""
    if pair.names[1] != NODE:
        pytest.skip("ours tries again by itself")
    redis = pair.servers[0]
    async with pair.producer("s") as producer:
        async with pair.consumer("s", "g"):
            await send(producer, "J1", {"fail": "no"}, "g")
            assert (await producer.expect("finished", "J1"))[1]["g"]["message"] == "no"
        helper = await programs.take(PYTHON)
        async with helper.peer("consumer", "s", pair.urls, group="g", claim_after=0.1, attempts=2):
            await eventually(lambda: redis.exists("hfxbus:dead:s"))
        [(_, letter)] = await redis.xrange("hfxbus:dead:s")
        assert (letter[b"job"], letter[b"attempts"], letter[b"grp"]) == (b"J1", b"2", b"hfxbus:csr:g")
        assert await pending(pair, "s", "g") == 0


async def test_a_producer_is_not_misled_by_completions_of_others(pair: Pair) -> None:
    async with pair.consumer("t", "g"), pair.producer("s") as producer, pair.producer("t") as other:
        await send(producer, "J1", 5, "g")
        await send(other, "J1", 5, "g")  # the same id in another stream
        await other.expect("finished", "J1", {"g": "done"})
        assert not [event for event in producer.events if event[0] == "finished"]
        async with pair.consumer("s", "g"):
            await producer.expect("finished", "J1", {"g": "done"})


async def test_nothing_that_Node_does_not_allow_is_done(pair: Pair) -> None:
    """By MONITOR: no entry is removed, no job acknowledged before it is done, no group moved."""
    if PYTHON not in pair.names:
        pytest.skip("Node only")
    commands = list[list[str]]()
    redis = pair.servers[0]
    async with redis.monitor() as monitor:

        async def watch() -> None:
            async for each in monitor.listen():
                commands.append(each["command"].split())

        task = asyncio.create_task(watch())
        async with (
            pair.consumer("s", "g", id="C") as consumer,
            pair.beside("s", "h", id="D"),
            pair.producer("s", id="P") as producer,
        ):
            await send(producer, "J1", {"sleep": 0.3}, "g", "h")
            await consumer.expect("job", "J1")
            commands.append(["job", "J1"])
            await consumer.expect("done", "J1")
            await producer.expect("finished", "J1", {"g": "done", "h": "done"})
            await send(producer, "J2", {"fail": "no"}, "g")
            await producer.expect("finished", "J2")
        await redis.ping()
        await eventually(lambda: commands[-1] == ["PING"])
        task.cancel()
    verbs = [each[0].upper() for each in commands]
    assert "XADD" in verbs
    assert not {"XDEL", "XSETID", "FLUSHALL", "SCRIPT"} & set(verbs)
    assert all(each[1].upper() != "SETID" for each in commands if each[0].upper() == "XGROUP")
    for each in commands:
        if each[0].upper() == "XADD" and each[1] == "hfxbus:str:s":
            named = dict(zip(each[each.index("*") + 1 :: 2], each[each.index("*") + 2 :: 2], strict=True))
            assert named["prd"] == "P"
            assert named["job"] in ("J1", "J2")
        if each[0].upper() == "XTRIM" and each[1] != "hfxbus:done:s":  # which is ours alone
            assert each[1:3] == ["hfxbus:str:s", "MINID"]
    acks = [place for place, each in enumerate(commands) if each[0].upper() == "XACK"]
    assert acks
    assert min(acks) > commands.index(["job", "J1"])
    published = [each for each in commands if each[0].upper() == "PUBLISH" and each[1] == "hfxbus:chn:s:P"]
    assert len([each for each in published if "J1" in each[2]]) == 2
