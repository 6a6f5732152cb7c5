"""penstock explain: text and JSON for every state of a message."""

import re

import pytest
from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.tracking.record import UNTAKEN
from tests.cli.given import explained, facts
from tests.support.clock import Span
from tests.support.commandline import AWKWARD, penstock
from tests.support.hop import Start
from tests.support.membership import register
from tests.support.tracked import KEYS, chain, delayed, event, in_flight, now, policy, write


@pytest.fixture(autouse=True)
async def tracks(redis: Redis) -> None:
    await policy(redis)


async def test_delayed(redis: Redis, redis_url: str) -> None:
    await delayed(redis)
    assert await explained(redis_url) == [
        "Message 3 (xid a) is delayed since it was registered 1 min 5 s ago (T).",
        "Next: its first delivery, to out, in 59 min 59 s (T).",
    ]


async def test_delayed_and_overdue(redis: Redis, redis_url: str) -> None:
    await delayed(redis, left=-65)
    assert (await explained(redis_url))[1] == (
        "Next: its first delivery, to out. It was due 1 min 5 s ago (T), "
        "but no monitor that watches demo is alive: start one."
    )


async def test_waiting_for_a_retry_after_a_timeout(redis: Redis, redis_url: str) -> None:
    await delayed(redis, attempt=1, age=300, delivered=f"{await now(redis) - 65:.3f}")
    assert await explained(redis_url) == [
        "Message 3 (xid a) waits for its next attempt: "
        "attempt 1 of 3 was delivered 1 min 5 s ago (T), and it was not done in time.",
        "Next: attempt 2 of 3, to out, in 59 min 59 s (T).",
    ]


async def test_waiting_for_a_retry_after_a_worker_gave_up(redis: Redis, redis_url: str) -> None:
    await delayed(redis, attempt=2, error="no \x1bdisk")
    first, second = await explained(redis_url)
    assert first.endswith("attempt 2 of 3 was delivered 1 min 5 s ago (T), and the worker gave it up: no \\x1bdisk.")
    assert second.startswith("Next: attempt 3 of 3, to out, in ")


async def test_an_instance_that_has_missed_a_renewal_is_late(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "2")
    await redis.hset("demo:2", mapping={"renewed": (await redis.time())[0] - 41, "renew": 15})
    await in_flight(redis)
    assert re.search(r"by demo:2 \(pid 77 on oak, late: renewed .* s ago\)", (await explained(redis_url))[0])


async def test_in_flight_and_not_taken_yet(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "2")
    await in_flight(redis)
    await redis.lpush("out", "first", "second", "hello", "later")
    assert await explained(redis_url) == [
        "Message 3 (xid a) is in flight: attempt 1 of 3, delivered 1 min 5 s ago (T) by demo:2 (pid 77 on oak, alive).",
        "No worker has taken it yet: 2 in out are before it.",
        "Next: attempt 2 of 3 after a back-off of 1 s, unless it is done by its deadline, in 59 min 59 s (T).",
    ]
    await redis.rpop("out", 2)
    assert (await explained(redis_url))[1] == "No worker has taken it yet: it is the next in out."
    await redis.hset(KEYS.message("3"), "number", 7)  # so its clock starts when it is taken
    assert (await explained(redis_url))[2:] == ["A worker that takes it has 10 s to finish it."]
    found = await facts(redis_url)
    assert (found["until"], found["next"], found["backoff"]) == (None, "", None)


async def test_in_flight_for_the_only_attempt_that_the_message_wants(redis: Redis, redis_url: str) -> None:
    await register(redis, "demo", "2")
    await in_flight(redis)
    await redis.hset(KEYS.message("3"), "attempts", 1)
    found = await explained(redis_url)
    assert "attempt 1 of 1, " in found[0]
    assert (await facts(redis_url))["next"] == "dead"


async def test_a_message_is_known_by_what_was_pushed(redis: Redis, redis_url: str, start: Start) -> None:
    hop = await start()
    for number, message in enumerate((b"order-7", b'{"meta": {"id": "a"}}', b"007"), start=1):
        await hop.push(message)
        assert (await facts(redis_url, message.decode()))["id"] == str(number)


async def test_in_flight_with_a_worker_and_its_instance_dead(redis: Redis, redis_url: str) -> None:
    await in_flight(redis, attempt=2)
    await redis.lpush("out", "other")
    first, second, third = await explained(redis_url)
    assert first == (
        "Message 3 (xid a) is in flight: attempt 2 of 3, "
        "delivered 1 min 5 s ago (T) by demo:2, which is not alive any more."
    )
    assert second == "A worker has it: it is not in out any more."
    assert third.startswith("Next: attempt 3 of 3 after a back-off of 5 s, unless it is done by its deadline, in ")


async def test_in_flight_somewhere_in_a_queue_too_long_to_look_through(redis: Redis, redis_url: str) -> None:
    await in_flight(redis)
    await redis.rpush("out", "hello", *["other"] * 10_000)
    assert (await explained(redis_url))[1] == (
        "It is not among the next 10,000 of 10,001 in out: it is further back, or a worker has it."
    )
    assert (await facts(redis_url))["held"] == "unsure"


async def test_in_flight_and_not_taken_by_its_deadline(redis: Redis, redis_url: str) -> None:
    await in_flight(redis)
    await redis.zadd(KEYS.deadlines, {"3": UNTAKEN + 7})
    await redis.lpush("out", "first", "hello")
    assert (await explained(redis_url))[1:] == [
        "No worker has taken it yet: 1 in out are before it.",
        "A worker that takes it has 10 s to finish it.",
    ]
    found = await facts(redis_url)
    assert (found["until"], found["waits"], found["overdue"]) == (None, 10, False)
    await policy(redis, queueTimeout=3600)
    assert (await explained(redis_url))[3].startswith(
        "Next: the dead letters of demo, unless it is taken before, in 58 min "
    )


async def test_in_flight_for_the_last_time(redis: Redis, redis_url: str) -> None:
    await in_flight(redis, attempt=3)
    assert (await explained(redis_url))[2] == (
        "Next: the dead letters of demo, unless it is done by its deadline, in 59 min 59 s (T)."
    )


async def test_in_flight_with_a_back_off_that_has_jitter_or_none(redis: Redis, redis_url: str) -> None:
    await in_flight(redis, attempt=2)
    await policy(redis, backoff='{"base": 4, "cap": 60}')
    assert "attempt 3 of 3 after a back-off of 4 to 8 s, unless" in (await explained(redis_url))[2]
    await policy(redis, backoff="[0]")
    assert "attempt 3 of 3, unless" in (await explained(redis_url))[2]


async def test_given_up_by_a_worker_for_good(redis: Redis, redis_url: str) -> None:
    await in_flight(redis, error="no such customer", final=1)
    assert (await explained(redis_url))[1:] == [
        "The worker gave it up: no such customer",
        "Next: the dead letters of demo, unless it is done by its deadline, in 59 min 59 s (T).",
    ]


async def test_overdue_and_nobody_has_acted(redis: Redis, redis_url: str) -> None:
    await in_flight(redis, left=-65)
    assert (await explained(redis_url))[2] == (
        "Next: attempt 2 of 3 after a back-off of 1 s. Its deadline was 1 min 5 s ago (T), "
        "but no monitor that watches demo is alive: start one."
    )
    for namespace, watched in (("eyes", "demo"), ("others", "xdemo")):
        await register(redis, namespace, "4")
        await redis.hset(f"{namespace}:4", "service", "monitor")
        await redis.hset(f"{namespace}:lists", f"{namespace}:pending:{watched}", "pending")
    assert (await explained(redis_url))[2].endswith(
        "Its deadline was 1 min 5 s ago (T), but it has not happened yet: see the log of eyes:4 (pid 77 on oak)."
    )


async def test_several_with_the_same_xid(redis: Redis, redis_url: str) -> None:
    for id in ("3", "5", "4"):
        await in_flight(redis, id)
    first, second, *_ = await explained(redis_url, "a")
    assert first == "3 messages with that xid are in flight or delayed: this is the oldest, then come 5, 4."
    assert second.startswith("Message 3 (xid a) is in flight")
    assert (await explained(redis_url, "5"))[0].startswith("Message 5 (xid a) is in flight"), "an id means that one"


async def test_an_xid_of_messages_that_are_delayed(redis: Redis, redis_url: str) -> None:
    for number in range(1200):
        await redis.zadd(KEYS.delayed, {f"{number + 100}": 1})
    await delayed(redis, "7", left=7200)
    await delayed(redis, "8")
    first, second, *_ = await explained(redis_url, "a")
    assert first == "2 messages with that xid are in flight or delayed: this is the oldest, then come 7."
    assert second.startswith("Message 8 (xid a) is delayed")


async def test_about_to_expire(redis: Redis, redis_url: str) -> None:
    await in_flight(redis)
    await redis.delete(KEYS.message("3"))
    assert await explained(redis_url) == [
        "Message 3 is in flight, but its record is gone.",
        "Next: it is counted as expired, in 59 min 59 s (T).",
    ]
    await redis.rename(KEYS.deadlines, KEYS.delayed)
    assert (await explained(redis_url))[0] == "Message 3 is delayed, but its record is gone."


async def test_stray(redis: Redis, redis_url: str) -> None:
    await in_flight(redis)
    await redis.delete(KEYS.deadlines)
    expected = [
        "Message 3 (xid a), last seen 1 min 5 s ago (T), is neither in flight nor delayed, dead or done: "
        "somebody has deleted its keys."
    ]
    assert await explained(redis_url) == expected
    await redis.delete(KEYS.message("3"), KEYS.xid("a"))
    await event(redis, "retry")
    assert await explained(redis_url) == expected


async def test_a_number_is_the_xid_of_a_message_in_flight_else_an_id_or_what_by_says(
    redis: Redis, redis_url: str
) -> None:
    await in_flight(redis, "3", "4")
    await in_flight(redis, "5", "3")
    await event(redis, "done", "4", "x")
    assert (await facts(redis_url, "3"))["id"] == "5"
    assert (await explained(redis_url, "3"))[0] == "Message 3 is a different one: use --by id for it."
    assert (await facts(redis_url, "3", "--by", "id"))["id"] == "3"
    assert (await facts(redis_url, "4"))["id"] == "3", "message 4 is not tracked any more"
    assert (await facts(redis_url, "4", "--by", "id"))["state"] == "done"
    assert (await facts(redis_url, "005"))["id"] == "5"
    assert (await penstock("explain", "demo", "5", "--by", "xid", redis=redis_url)).status == 1
    await redis.delete(KEYS.xid("3"))
    assert (await facts(redis_url, "3"))["id"] == "3"
    result = await penstock("explain", "demo", "5", "--by", "name", redis=redis_url)
    assert (result.status, "expected either, xid or id" in result.error) == (2, True)


async def test_touch_trace_and_done_say_which_message_they_mean_as_explain_does(redis: Redis, redis_url: str) -> None:
    await in_flight(redis, "3", "4", left=5)
    await in_flight(redis, "4", "x", left=5)
    await event(redis, "registered", "3", "4")
    await event(redis, "registered", "4", "x")
    for options, id in (((), "3"), (("--by", "xid"), "3"), (("--by", "id"), "4")):
        touched = (await penstock("touch", "demo", "4", "100", *options, "--json", redis=redis_url)).json
        assert touched["id"] == id
        traced = (await penstock("trace", "demo", "4", *options, "--json", redis=redis_url)).json
        assert {each["id"] for each in traced["events"]} == {id}
        ended = (await penstock("done", "demo", "4", "--wait", "0", *options, "--json", redis=redis_url)).json
        assert ended["id"] == id


async def test_json_says_the_same(redis: Redis, redis_url: str) -> None:
    began = await now(redis)
    await register(redis, "demo", "2")
    await in_flight(redis)
    await chain(redis, "9", "a")
    found = await facts(redis_url, "a")
    moment = Span(began, await now(redis))
    assert found.pop("now") == moment
    assert found.pop("since") == moment - 65
    assert found.pop("until") == moment + 3600
    assert found.pop("instance")["host"] == "oak"
    assert found == {
        "namespace": "demo", "asked": "a", "state": "in flight", "id": "3", "xid": "a", "others": ["9"], "namesake": "",
        "next": "retry", "attempt": 1, "attempts": 3, "backoff": [1.0, 1.0], "queue": "out", "held": "worker",
        "waits": None,
        "before": None, "length": 0, "service": "2", "monitors": [], "reason": "", "error": "", "seconds": None,
        "traceparent": "", "late": False, "reach": None, "overdue": False,
    }  # fmt: skip


@pytest.mark.parametrize("xid", [*AWKWARD, "\x1b[31m", "next:3", "id", "x" * 512])
async def test_an_xid_may_be_anything(redis: Redis, redis_url: str, xid: str) -> None:
    await in_flight(redis, "3", xid)
    lines = await explained(redis_url, xid)
    assert lines[0].startswith("Message 3 (xid ")
    assert "\x1b" not in "".join(lines)
    await redis.delete(KEYS.xid(xid), KEYS.deadlines, KEYS.message("3"))
    await event(redis, "done", "3", xid)
    assert "was done" in (await explained(redis_url, xid))[0]


async def test_a_message_may_be_any_bytes(redis: Redis, redis_url: str) -> None:
    payload = bytes(range(256))
    await in_flight(redis, message=payload)
    await redis.lpush("out", payload)
    assert (await facts(redis_url))["before"] == 0


@pytest.mark.parametrize("namespace", AWKWARD)
async def test_a_namespace_may_have_any_name(redis: Redis, redis_url: str, namespace: str) -> None:
    await policy(redis, Keys(namespace))
    await in_flight(redis, keys=Keys(namespace))
    assert (await explained(redis_url, "a", namespace))[0].startswith("Message 3 (xid a) is in flight")


async def test_a_queue_that_is_no_list_any_more_is_left_out(redis: Redis, redis_url: str) -> None:
    await in_flight(redis)
    await redis.set("out", "text")
    assert len(await explained(redis_url)) == 2


async def test_only_tracked_messages_can_be_explained(redis: Redis, redis_url: str) -> None:
    await write(redis, "hop:lists", out="out")
    for namespace, words in (("hop", "messages of hop are not tracked"), ("nosuch", "no service has registered in")):
        result = await penstock("explain", namespace, "3", redis=redis_url)
        assert (result.status, result.out) == (1, b"")
        assert words in result.error
