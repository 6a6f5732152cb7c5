"""Reply lists: which ones a request may name, when they end, and the audit of their answers."""

import json
import re
from math import inf
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from common import registered_lists
from common.registered_lists import announce
from penstock.accounting.answers import audit_answers
from penstock.base.keys import Keys
from penstock.tracking.policy import Policy
from services.monitor import settings as watching
from services.mpush import settings as mpush
from tests.scripts.questions import answer, request
from tests.support.hop import Hop, Start

BAD: dict[str, str] = {
    "other:in": "what clients push to another service",
    "other:dead": "its dead letters",
    "other:pend:1": "what one of its instances has taken",
    "other:pend": "what its active instance has taken",
    "other:ids": "its live instances",
    "other:1": "the registration of an instance that is still to come",
    "other:owners": "who has a pending list",
    "watcher:pending:demo:1": "what a monitor has taken",
    "pending:answers": "answers that were taken",
    "pending:answers:1": "those of an instance",
}
"""Lists that a request could once delete, or use to stop a service, with their contents."""
bad = pytest.mark.parametrize("name", BAD)


@bad
async def test_a_request_names_a_list_that_reply_lists_allow_or_is_a_dead_letter(start: Start, name: str) -> None:
    hop = await start(reply_lists=[])
    await hop.redis.lpush("other:in", "accepted")
    await hop.push(request("a", replyTo=name), request("b", replyTo="demo:reply:b"))
    await hop.answer(answer("b"))
    (letter,) = await hop.letters()
    assert (letter["reason"], letter["message"]) == ("badRequest", request("a", replyTo=name))
    if not name.startswith("pending:"):
        assert letter["error"] == (
            f'meta.replyTo: "{name}" matches nothing in replyLists: expected "demo:reply:*", '
            "or have the operator add it there"
        )
    assert await hop.held("demo:reply:b") == [answer("b")]
    assert await hop.held("other:in") == [b"accepted"]
    assert await hop.redis.ttl("other:in") == -1


async def registered(redis: Any) -> None:
    """Register another service, and a monitor of this one."""
    least: dict[str, Any] = {"redis": "redis://h", "in_": "other:in", "pending": "other:pend", "out": ["other:out"]}
    other = mpush.Settings(**least, redis_namespace="other", overflow="dead", max_length=1)
    watcher = watching.Settings(redis="redis://h", redis_namespace="watcher", watch=["demo"])
    for settings in (other, watcher):
        await announce(redis, Keys(str(settings.redis_namespace)), settings, structlog.get_logger())


@bad
async def test_what_another_service_has_registered_is_refused_whatever_reply_lists_allow(
    start: Start, redis: Any, name: str
) -> None:
    await registered(redis)
    hop = await start(reply_lists=["*"])
    await hop.push(request("a", replyTo=name))
    (letter,) = await hop.letters()
    assert (letter["reason"], letter["message"]) == ("badRequest", request("a", replyTo=name))
    assert re.match(f'meta.replyTo: "{name}" is (a key|the list|what) ', letter["error"]) or "pending:answers" in name
    assert not await redis.exists(name)


@pytest.mark.parametrize("name", ["other:in", "other:out", "other:pend:7", "other:pend", "other:metrics:taken"])
async def test_what_another_service_registers_later_is_refused_within_seconds(
    start: Start, redis: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds for answers and errors of requests that were accepted before."""
    hop = await start(message_timeout=10, attempts=1, reply_lists=["*"])
    await hop.push(*[request(id, replyTo=name) for id in "abc"])
    await hop.answer(answer("a"))
    assert await redis.delete(name) == 1
    await registered(redis)
    monkeypatch.setattr(registered_lists, "STALE", 0)
    await hop.answer(answer("b"))
    await hop.push(request("d", replyTo=name))
    await hop.advance(10)
    await hop.sweep()
    assert [letter["reason"] for letter in await hop.letters()] == ["badAnswer", "badRequest", "timeout"]
    assert not await redis.exists(name)


async def test_a_next_service_may_be_named_in_full_but_not_what_it_has_in_hand(start: Start, redis: Any) -> None:
    await registered(redis)
    hop = await start(reply_lists=["other:in", "other:pend:1", "other:ids"])
    await hop.push(*[request(name, replyTo=name) for name in ("other:in", "other:pend:1", "other:ids")])
    await hop.answer(answer("other:in"))
    assert await hop.held("other:in") == [answer("other:in")]
    assert [json.loads(letter["message"])["meta"]["id"] for letter in await hop.letters()] == [
        "other:pend:1",
        "other:ids",
    ]


async def test_the_lists_of_others_are_read_once_in_a_while_however_many_messages_come(
    start: Start, redis: Any
) -> None:
    hop = await start(reply_lists=["*"])
    await redis.config_resetstat()
    for number in range(50):
        await hop.push(request(str(number), replyTo=f"to:{number}"))
    assert (await redis.info("commandstats")).get("cmdstat_hgetall", {"calls": 0})["calls"] <= 2


async def test_an_unreadable_directory_stops_no_service(start: Start, redis: Any) -> None:
    await redis.set(Keys("demo").directories[0], "text")
    with capture_logs() as logs:
        hop = await start(reply_lists=["to:*"])
        await hop.push(request("a", replyTo="to:a"))
        await registered(redis)
    assert await hop.in_flight() == ["1"]
    assert [log["event"] for log in logs] == ["the lists of other services are unknown"] + 2 * [
        "other services do not know the lists of this one"
    ]
    assert all(re.search("WRONGTYPE|holds a string, expected a hash", log["reason"]) for log in logs)


async def test_fields_that_a_compromised_service_has_set_stop_no_service(start: Start, redis: Any) -> None:
    words = [b"", b"[]", b"{", b'{"to:a": ["in"]}', b'{"\\ud800": 5}', b"\xff", b"[" * 100_000]
    names = [b"other", b"", b":", b"{", b"demo", b"\xff", b"in"]
    await redis.hset(Keys("demo").directories[0], mapping=dict(zip(names, words, strict=True)))
    hop = await start(reply_lists=["reply:*"])
    await hop.push(request("a", replyTo="reply:a"))
    await hop.answer(answer("a"))
    assert await hop.held("reply:a") == [answer("a")]


async def test_a_list_that_a_compromised_service_claims_for_another_one_makes_dead_letters_until_that_one_looks(
    start: Start, redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered_lists, "STALE", 0)
    await redis.hset(Keys("demo").directories[0], "other", json.dumps({"to:a": "in"}))
    hop = await start(reply_lists=["to:*"])
    await hop.push(request("a", replyTo="to:a"))
    (letter,) = await hop.letters()
    assert (letter["reason"], letter["message"]) == ("badRequest", request("a", replyTo="to:a"))
    await registered(redis)
    await hop.push(request("b", replyTo="to:a"))
    await hop.answer(answer("b"))
    assert await hop.held("to:a") == [answer("b")]


@pytest.mark.parametrize(
    ("allowed", "good", "refused"),
    [
        (["to:*"], ["to:a", "to:", "to:a:b"], ["too:a", "a:to:b", "demo:reply:a"]),
        (["to:?", "exact"], ["to:a", "exact"], ["to:ab", "exactly"]),
        (["to:[ab]"], ["to:a"], ["to:c", "to:[ab]"]),
        (["*"], ["anything"], ["demo:dead", "in"]),
    ],
    ids=str,
)
async def test_reply_lists_are_names_and_patterns(
    start: Start, allowed: list[str], good: list[str], refused: list[str]
) -> None:
    hop = await start(reply_lists=allowed)
    await hop.push(*[request(name, replyTo=name) for name in good + refused])
    assert [json.loads(letter["message"])["meta"]["replyTo"] for letter in await hop.letters()] == refused
    await hop.answer(*map(answer, good))
    assert [await hop.held(name) for name in good] == [[answer(name)] for name in good]


async def test_a_namespace_with_letters_of_patterns_allows_its_own_lists_only(start: Start) -> None:
    hop = await start(namespace="de[mo]*", reply_lists=[])
    await hop.push(request("a", replyTo="de[mo]*:reply:a"), request("b", replyTo="dem:reply:b"))
    (letter,) = await hop.letters()
    assert letter["message"] == request("b", replyTo="dem:reply:b")


async def test_a_list_that_reply_lists_name_in_full_is_given_no_ttl_even_if_an_answer_makes_it(start: Start) -> None:
    """For example the ``in`` of the next service: others push to it and do not expect a TTL."""
    hop = await start(3, message_timeout=10, attempts=1, reply_lists=["next:in", "to:*"])
    await hop.push(request("a", replyTo="next:in"), request("b", replyTo="next:in"), request("c", replyTo="to:c"))
    await hop.answer(answer("a"), answer("c"))
    await hop.redis.delete("next:in")
    await hop.advance(10)
    await hop.sweep()
    assert len(await hop.held("next:in")) == 1
    assert await hop.redis.ttl("next:in") == -1
    assert await hop.redis.ttl("to:c") > 0


@bad
async def test_the_error_of_a_record_that_names_another_list_is_sent_nowhere(start: Start, name: str) -> None:
    """The record was written by an older mdispatch or by another program."""
    hop = await start(message_timeout=10, attempts=1, reply_lists=[])
    await hop.push(request("a", replyTo="demo:reply:a"))
    await hop.redis.hset(hop.keys.message("1"), "replyTo", name)
    await hop.advance(10)
    await hop.sweep()
    (letter,) = await hop.letters()
    assert (letter["reason"], letter["replyTo"]) == ("timeout", name)
    assert not await hop.redis.exists(name)


@bad
async def test_an_answer_whose_record_names_another_list_is_a_dead_letter(start: Start, name: str) -> None:
    hop = await start(reply_lists=[])
    await hop.push(request("a", replyTo="demo:reply:a"))
    hop.forget()
    await hop.redis.hset(hop.keys.xid("a"), "replyTo:1", name)
    await hop.answer(answer("a"))
    (letter,) = await hop.letters()
    assert (letter["reason"], letter["message"]) == ("badAnswer", answer("a"))
    assert letter["error"].startswith(f'replyTo: "{name}" ')
    assert not await hop.redis.exists(name)
    assert (await hop.counts()).items() >= {"done": 1, "dead": 1}.items()


async def test_a_policy_of_before_allows_what_is_the_default(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=1)
    await hop.push(request("a", replyTo="demo:reply:a"), request("b", replyTo="other:in"))
    await hop.redis.hdel(hop.keys.policy, "replyLists")
    hop.policy = await Policy.read(hop.redis, hop.keys) or hop.policy
    await hop.advance(10)
    await hop.sweep()
    assert await hop.redis.exists("demo:reply:a")
    assert not await hop.redis.exists("other:in")


async def parts(hop: Hop) -> dict[str, int]:
    """Return the parts of the invariant, without those of 0; assert that it holds without problems."""
    law, problems = await audit_answers(hop.redis, hop.keys)
    assert law
    assert (law.difference, problems) == (0, [])
    return {name: count for name, count in {"sent": law.count, **law.parts}.items() if count}


async def answered(start: Start, number: int = 3, name: str = "to:a", **settings: Any) -> Hop:
    """Send ``number`` answers to the list ``name``."""
    hop = await start(2, reply_expire=60, **settings)
    await hop.push(*[request(str(each), replyTo=name) for each in range(number)])
    await hop.answer(*[answer(str(each)) for each in range(number)])
    return hop


async def test_answers_are_waiting_then_taken(start: Start) -> None:
    hop = await answered(start)
    assert await parts(hop) == {"sent": 3, "waiting": 3}
    await hop.redis.rpop("to:a", 2)
    assert await parts(hop) == {"sent": 3, "taken": 2, "waiting": 1}
    await hop.redis.rpop("to:a")
    assert await parts(hop) == {"sent": 3, "taken": 3}
    await hop.advance(61)
    assert await hop.end_answers() == inf
    assert await parts(hop) == {"sent": 3, "taken": 3}
    assert not await hop.redis.exists(hop.keys.answers, hop.keys.answers_more)


async def test_untaken_answers_count_as_expired_when_a_monitor_ends_the_list(start: Start) -> None:
    hop = await answered(start)
    await hop.redis.rpop("to:a")
    assert 55 < await hop.end_answers() <= 60
    assert await hop.redis.exists("to:a")
    await hop.advance(61)
    await hop.end_answers(1)
    assert await parts(hop) == {"sent": 3, "taken": 1, "expired": 2}
    assert not await hop.redis.exists("to:a", hop.keys.answers, hop.keys.answers_more)


async def test_without_a_monitor_the_server_ends_a_list_and_its_answers_are_unseen(start: Start) -> None:
    hop = await answered(start)
    await hop.advance(121)
    assert not await hop.redis.exists("to:a")
    await hop.end_answers()
    assert await parts(hop) == {"sent": 3, "unseen": 3}


async def test_an_answer_that_comes_as_its_list_is_to_end_keeps_it(start: Start) -> None:
    hop = await answered(start)
    await hop.advance(61)
    await hop.push(request("b", replyTo="to:a"))
    task = hop.monitors[0]
    assert await task.halt("end_answers.lua", hop.end_answers())
    await hop.answer(answer("b"))
    await task.resume()
    assert await hop.redis.llen("to:a") == 4
    assert await parts(hop) == {"sent": 4, "waiting": 4}


async def test_answers_in_lasting_lists_belong_to_their_readers(start: Start) -> None:
    hop = await start(reply_to="replies", reply_lists=["to:*", "next:in"], message_timeout=10, attempts=1)
    await hop.redis.lpush("to:others", "accepted")
    await hop.push(request("a"), request("b", replyTo="next:in"), request("c", replyTo="to:others"))
    await hop.answer(answer("a"), answer("b"))
    await hop.advance(10)
    await hop.sweep()
    assert await parts(hop) == {"sent": 3, "in lasting lists": 3}
    assert await hop.redis.ttl("to:others") == -1


async def test_a_list_to_which_others_push_is_named_and_never_deleted(start: Start) -> None:
    """The answer creates the list, then others push to it."""
    hop = await answered(start, 1, "to:in")
    await hop.redis.lpush("to:in", *["accepted"] * 1000)
    law, problems = await audit_answers(hop.redis, hop.keys)
    assert law
    assert law.difference == 0
    (problem,) = problems
    assert problem.startswith("'to:in' holds 1,001 messages, at most 1 of them answers: it has a TTL and is gone in ")
    assert problem.endswith("expected a list for answers alone: PERSIST to:in")
    await hop.advance(61)
    await hop.end_answers()
    assert (await hop.redis.llen("to:in"), await hop.redis.ttl("to:in")) == (1001, -1)
    assert await parts(hop) == {"sent": 1, "in lasting lists": 1}


async def test_a_list_that_was_taken_and_made_again_by_others_is_not_deleted(start: Start) -> None:
    hop = await answered(start, 5)
    await hop.redis.delete("to:a")
    await hop.redis.lpush("to:a", "accepted")
    await hop.advance(61)
    await hop.end_answers()
    assert (await hop.redis.llen("to:a"), await hop.redis.ttl("to:a")) == (1, -1)
    assert await parts(hop) == {"sent": 5, "in lasting lists": 5}


@pytest.mark.parametrize(
    ("spoil", "missing"),
    [
        (("ZREM", "demo:message:answers", "to:a"), 1),
        (("HINCRBY", "demo:message:answers:more", "to:a", 2), -2),
        (("HINCRBY", "demo:metrics:answers", "taken", 1), -1),
        (("HINCRBY", "demo:metrics:answers", "count", 1), 1),
    ],
    ids=str,
)
async def test_answers_that_are_not_accounted_for_are_a_problem(
    start: Start, spoil: tuple[Any, ...], missing: int
) -> None:
    hop = await answered(start)
    hop.is_sound = False
    await hop.redis.execute_command(*spoil)
    law, problems = await audit_answers(hop.redis, hop.keys)
    assert law
    assert law.difference == missing
    assert len(problems) == 1


async def test_answers_that_no_list_may_get_are_counted(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=1, reply_lists=[])
    await hop.push(request("a", replyTo="demo:reply:a"), request("b", replyTo="demo:reply:b"))
    hop.forget()
    await hop.redis.hset(hop.keys.xid("a"), "replyTo:1", "other:in")
    await hop.redis.hset(hop.keys.message("2"), "replyTo", "other:in")
    await hop.answer(answer("a"))
    await hop.advance(10)
    await hop.sweep()
    assert await hop.metric("answers") == {"refused": 2}


async def test_many_lists_are_ended_in_batches_and_looked_at_in_part(start: Start) -> None:
    hop = await start()
    for number in range(0, 1200, 100):
        names = list(map(str, range(number, number + 100)))
        await hop.push(*[request(name, replyTo=f"to:{name}") for name in names])
        await hop.answer(*map(answer, names))
    assert await parts(hop) == {"sent": 1200, "waiting": 1000, "not looked at": 200}
    await hop.advance(61)
    for _ in range(3):
        await hop.end_answers()
    assert await parts(hop) == {"sent": 1200, "expired": 1200}
