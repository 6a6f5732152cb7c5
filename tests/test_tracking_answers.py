"""Answers of workers, to whoever asked."""

import json
import re
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from common import directory
from common.context import Context
from common.directory import announce
from penstock.keys import Keys
from penstock.lua import Script
from penstock.policy import Policy
from services.mdispatch import answers
from services.monitor import settings as watching
from services.mpush import settings as mpush
from tests.hop import Hop, Start


def request(id: str = "a", **meta: Any) -> bytes:
    return json.dumps({"meta": {"id": id, **meta}, "body": "question"}).encode()


def answer(id: object = "a", **meta: Any) -> bytes:
    return json.dumps({"meta": {"id": id, **meta}, "body": "answer"}).encode()


async def test_an_answer_goes_where_the_request_says_and_ends_its_record(start: Start) -> None:
    hop = await start(reply_expire=60)
    await hop.push(request("a", replyTo="to:a"), request("b", replyTo="to:b"))
    await hop.answer(answer("b"), answer("a"))
    assert await hop.held("to:a") == [answer("a")]
    assert await hop.held("to:b") == [answer("b")]
    assert await hop.in_flight() == []
    assert not await hop.redis.exists(hop.keys.message("1"), hop.keys.xid("a"), "res")
    for name in ("to:a", "to:b"):
        assert 55 < await hop.redis.ttl(name) <= 60
    assert await hop.counts() == {"taken": 2, "delivered": 2, "registered": 2, "done": 2}
    assert await hop.problems() == []


async def test_an_answer_goes_to_the_configured_list_where_the_request_names_none(start: Start) -> None:
    hop = await start(reply_to="replies")
    await hop.push(request("a"), request("b", replyTo="mine"))
    await hop.answer(answer("a"), answer("b"))
    assert await hop.held("replies") == [answer("a")]
    assert await hop.held("mine") == [answer("b")]
    assert await hop.redis.ttl("replies") == -1


async def test_the_configured_list_may_be_named_by_a_request_and_lives_on(start: Start) -> None:
    hop = await start(reply_to="replies")
    await hop.push(request("a", replyTo="replies"))
    await hop.answer(answer("a"))
    assert await hop.held("replies") == [answer("a")]
    assert await hop.redis.ttl("replies") == -1


async def test_each_answer_lets_its_list_live_longer(start: Start) -> None:
    hop = await start(reply_expire=60)
    await hop.push(request("a", replyTo="mine"), request("b", replyTo="mine"))
    await hop.answer(answer("a"))
    await hop.redis.expire("mine", 5)
    await hop.answer(answer("b"))
    assert 55 < await hop.redis.ttl("mine") <= 60


@pytest.mark.parametrize("dies", [False, True], ids=["answered", "dies"])
async def test_a_list_that_was_there_before_its_answer_is_given_no_ttl(start: Start, dies: bool) -> None:
    """Its messages were pushed by somebody else, to whom nobody said that they would be gone."""
    hop = await start(message_timeout=10, attempts=1, reply_expire=60)
    await hop.redis.lpush("others", "accepted")
    await hop.push(request("a", replyTo="others"))
    await (hop.advance(10) if dies else hop.answer(answer("a")))
    await hop.sweep()
    assert await hop.redis.llen("others") == 2
    assert await hop.redis.ttl("others") == -1


async def test_a_ttl_that_its_reader_gave_a_list_is_not_shortened(start: Start) -> None:
    hop = await start(reply_expire=60)
    await hop.push(request("a", replyTo="mine"))
    await hop.redis.lpush("mine", "before")
    await hop.redis.expire("mine", 3600)
    await hop.answer(answer("a"))
    assert 3500 < await hop.redis.ttl("mine") <= 3600


async def test_an_answer_to_a_request_that_wants_none_is_a_dead_letter_and_the_request_is_done(start: Start) -> None:
    hop = await start()
    await hop.push(request("a"))
    await hop.answer(answer("a"))
    (letter,) = await hop.letters()
    assert (letter["message"], letter["reason"], letter["source"]) == (answer("a"), "badAnswer", "res")
    assert letter["error"] == "nobody is waiting: the request had no replyTo"
    assert "queue" not in letter
    assert await hop.counts() == {"taken": 1, "delivered": 1, "registered": 1, "done": 1, "dead": 1}
    assert await hop.metric("dead") == {"count": 1, "badAnswer": 1}
    assert await hop.problems() == []


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"a",
        b"1",
        b"{}",
        b"[]",
        b"null",
        b'{"meta":null}',
        b'{"meta":"a"}',
        b'{"meta":[]}',
        b'{"meta":{}}',
        b'{"meta":{"id":null}}',
        b'{"meta":{"id":""}}',
        b'{"meta":{"id":true}}',
        b'{"meta":{"id":["a"]}}',
        b'{"meta":{"id":"' + b"x" * 513 + b'"}}',
        b'{"meta":{"id":"a"}',
        b'{"meta":{"id":"\xff"}}',
        b'{"meta":' * 100_000,
    ],
    ids=lambda bad: bad[:24],
)
async def test_an_answer_that_names_no_request_is_a_dead_letter(start: Start, bad: bytes) -> None:
    hop = await start(reply_to="replies")
    await hop.push(request("a"))
    await hop.answer(bad, answer("a"))
    (letter,) = await hop.letters()
    assert (letter["message"], letter["reason"], letter["source"]) == (bad, "badAnswer", "res")
    assert letter["error"] == "expected a JSON object with the request's meta.id"
    assert await hop.held("replies") == [answer("a")]
    assert await hop.problems() == []


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (request("ünï"), answer("ünï")),
        (request("7"), answer(7)),
        (b'{"meta":{"id":7}}', answer("7")),
        (b"12345", answer("12345")),
        (b"12345", answer(12345)),
        (b'{"meta":{"id":"\\ud800"}}', answer("\ud800")),
        (b'{"meta":{"id":1.5}}', answer(1.5)),
        (b'{"meta":{"id":-0.0}}', answer(-0.0)),
        (b'{"meta":{"id":"a"}}', answer("a", attempt=1)),
        (b'{"meta":{"id":"a"}}', answer("a", attempt="first")),
        (b'{"meta":{"id":"a"}}', b' {"meta": {"id": "a", "more": [1]}, "body": "\\u0000"} '),
    ],
    ids=str,
)
async def test_an_answer_names_its_request_as_the_request_named_itself(
    start: Start, asked: bytes, answered: bytes
) -> None:
    hop = await start(reply_to="replies")
    await hop.push(asked)
    await hop.answer(answered)
    assert await hop.held("replies") == [answered]
    assert (await hop.counts())["done"] == 1


async def test_of_equal_requests_each_answer_goes_to_the_oldest(start: Start) -> None:
    hop = await start()
    await hop.push(*[request("a", replyTo=f"to:{number}") for number in range(3)])
    await hop.answer(*[answer("a", number=number) for number in range(4)])
    for number in range(3):
        assert await hop.held(f"to:{number}") == [answer("a", number=number)]
    assert (await hop.counts()).items() >= {"done": 3, "done:unknown": 1}.items()


async def test_a_second_answer_is_discarded_and_counted(start: Start) -> None:
    hop = await start()
    await hop.push(request("a", replyTo="mine"))
    await hop.answer(answer("a"), answer("a"))
    await hop.answer(answer("a"), answer("b"))
    assert await hop.held("mine") == [answer("a")]
    assert (await hop.counts()).items() >= {"done": 1, "done:unknown": 3}.items()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that a service has asked the server with."""
    names: list[str] = []
    ask = Context.ask

    async def note(context: Context[Any], script: Script, /, **named: Any) -> Any:
        names.append(script.name)
        return await ask(context, script, **named)

    monkeypatch.setattr(Context, "ask", note)
    return names


async def test_an_answer_to_a_request_of_its_own_takes_no_question(start: Start, asked: list[str]) -> None:
    hop = await start(reply_to="replies")
    await hop.push(request("a", replyTo="mine"), request("b"))
    await hop.answer(answer("b"), answer("a"))
    assert asked == []
    assert (await hop.held("mine"), await hop.held("replies")) == ([answer("a")], [answer("b")])
    await hop.answer(answer("a"))
    assert asked == ["identify.lua"]


async def test_answers_to_requests_of_other_instances_and_of_earlier_runs_find_their_way(
    start: Start, asked: list[str]
) -> None:
    hop = await start()
    await hop.push(request("a", replyTo="to:0"))
    hop.forget()
    await hop.push(request("b", replyTo="to:1"), request("a", replyTo="to:2"))
    await hop.answer(answer("b", number=1))
    assert asked == []
    await hop.answer(answer("a", number=0), answer("a", number=2))
    assert asked == ["identify.lua"]
    for number, id in enumerate("aba"):
        assert await hop.held(f"to:{number}") == [answer(id, number=number)]


async def test_a_request_that_has_the_id_and_xid_of_one_before_the_database_was_emptied(start: Start) -> None:
    hop = await start()
    await hop.push(request("a", replyTo="before"), request("b", replyTo="before"))
    await hop.redis.flushdb()
    hop.answers.remember(b"b", 1, "before")
    await hop.push(request("b", replyTo="after"), request("a", replyTo="after"))
    await hop.answer(answer("a"))
    assert await hop.held("after") == [answer("a")]


async def test_no_more_requests_are_remembered_than_fit(
    start: Start, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MOST_REMEMBERED", 2)
    hop = await start(reply_to="replies")
    await hop.push(*map(request, "abc"))
    await hop.answer(answer("b"), answer("c"))
    assert asked == []
    await hop.answer(answer("a"))
    assert asked == ["identify.lua"]
    assert await hop.held("replies") == [answer("b"), answer("c"), answer("a")]


async def test_a_request_that_is_gone_is_unknown_though_it_is_remembered(start: Start) -> None:
    hop = await start(message_expire=100, message_timeout=10)
    await hop.push(request("a", replyTo="mine"), request(replyTo=7), request("b", replyTo="mine", delay=50))
    await hop.advance(101)
    await hop.answer(answer("a"), answer("b"))
    await hop.answer(b"{}", answer(""))
    assert not await hop.redis.exists("mine")
    assert (await hop.counts())["done:unknown"] == 2
    assert await hop.problems() == []


async def test_an_answer_while_a_retry_is_waited_for_is_passed_on_and_counts_as_late(start: Start) -> None:
    hop = await start(message_timeout=10, backoff=[5])
    await hop.push(request("a", replyTo="mine"))
    await hop.advance(10)
    await hop.sweep()
    await hop.answer(answer("a"))
    assert await hop.held("mine") == [answer("a")]
    assert await hop.metric("done:late") == {"count": 1, "completed": 1}
    assert await hop.problems() == []


async def test_an_answer_of_an_attempt_before_is_passed_on_and_the_other_one_is_discarded(start: Start) -> None:
    hop = await start(message_timeout=10, backoff_base=0)
    await hop.push(request("a", replyTo="mine"))
    await hop.advance(10)
    await hop.sweep()
    await hop.answer(answer("a", attempt=1), answer("a", attempt=2))
    assert await hop.held("mine") == [answer("a", attempt=1)]
    assert (await hop.counts()).items() >= {"done:late": 1, "done:unknown": 1}.items()


async def dead(start: Start, **settings: Any) -> Hop:
    """Request a, dead by timeout, whose answer was wanted in ``mine``."""
    hop = await start(3, message_timeout=10, attempts=1, reply_expire=60, **settings)
    await hop.push(request("a", replyTo="mine"))
    await hop.advance(10)
    for monitor in range(3):
        await hop.sweep(monitor)
    return hop


async def test_a_request_that_dies_leaves_one_error_where_its_answer_was_wanted(start: Start) -> None:
    hop = await dead(start)
    (said,) = map(json.loads, await hop.held("mine"))
    assert said == {"meta": {"id": "a"}, "error": {"reason": "timeout", "attempts": 1}}
    assert 55 < await hop.redis.ttl("mine") <= 60


async def test_an_answer_to_a_dead_request_is_discarded_and_counted(start: Start) -> None:
    hop = await dead(start)
    await hop.redis.delete("mine")
    await hop.answer(answer("a"), answer("a"))
    assert not await hop.redis.exists("mine")
    assert await hop.metric("done:late") == {"count": 2}
    assert len(await hop.letters()) == 1
    assert await hop.problems() == []


async def test_a_request_that_a_worker_gave_up_for_good_leaves_its_words_where_the_answer_was_wanted(
    start: Start,
) -> None:
    hop = await start(reply_to="replies")
    await hop.push(request("a"))
    await hop.say({"id": 1, "error": "no such customer", "retry": False})
    await hop.sweep()
    (said,) = map(json.loads, await hop.held("replies"))
    assert said == {"meta": {"id": "a"}, "error": {"reason": "failed", "attempts": 1, "words": "no such customer"}}
    assert await hop.redis.ttl("replies") == -1


async def test_a_delayed_request_is_answered_as_any_other(start: Start) -> None:
    hop = await start()
    await hop.push(request("a", replyTo="mine", delay=100))
    await hop.answer(answer("a"))
    assert (await hop.counts())["done:unknown"] == 1
    await hop.advance(100)
    await hop.sweep()
    await hop.answer(answer("a"))
    assert await hop.held("mine") == [answer("a")]


@pytest.mark.parametrize(
    ("reply_to", "said"),
    [
        (7, "expected the name of a list"),
        ("", "expected the name of a list"),
        ("line\nbreak", "expected the name of a list"),
        ("\ud800", "expected the name of a list"),
        (["a"], "expected the name of a list"),
        ("demo:dead", "is a list of the service itself"),
        ("demo:done", "is a list of the service itself"),
        ("demo:events", "is a key of the service itself"),
        ("demo:message:1", "is a key of the service itself"),
        ("demo:7", "is a key of the service itself"),
        ("pending:7", "is the pending list of an instance"),
        ("in", "is a list of the service itself"),
        ("out", "is a list of the service itself"),
        ("res", "is a list of the service itself"),
        ("pending", "is a list of the service itself"),
    ],
    ids=str,
)
async def test_a_request_whose_answer_could_go_nowhere_good_is_a_dead_letter(
    start: Start, reply_to: object, said: str
) -> None:
    hop = await start()
    await hop.push(b"before", request("a", replyTo=reply_to), b"after")
    assert await hop.held() == [b"before", b"after"]
    (letter,) = await hop.letters()
    assert letter["reason"] == "badRequest"
    assert letter["error"].startswith("meta.replyTo: ")
    assert said in letter["error"]


async def test_a_list_for_answers_that_is_none_costs_its_answer_and_nothing_more(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=1)
    await hop.redis.set("mine", "not a list")
    await hop.push(request("a", replyTo="mine"), request("b", replyTo="other"), request("c", replyTo="mine"))
    await hop.answer(answer("a"), answer("b"))
    assert await hop.held("other") == [answer("b")]
    (letter,) = await hop.letters()
    assert (letter["message"], letter["reason"]) == (answer("a"), "badAnswer")
    assert letter["error"].startswith("mine: WRONGTYPE")
    await hop.advance(10)
    await hop.sweep()
    assert (await hop.counts()).items() >= {"done": 2, "dead": 2}.items()
    assert await hop.redis.get("mine") == b"not a list"
    assert await hop.problems() == []


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
"""Lists that a request once could have deleted, or that would have stopped a service."""
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
    assert await hop.problems() == []


async def registered(redis: Any) -> None:
    """Another service, and a monitor of this one."""
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
    """In the answers and errors of requests that were accepted before, too."""
    hop = await start(message_timeout=10, attempts=1, reply_lists=["*"])
    await hop.push(*[request(id, replyTo=name) for id in "abc"])
    await hop.answer(answer("a"))
    assert await redis.delete(name) == 1
    await registered(redis)
    monkeypatch.setattr(directory, "STALE", 0)
    await hop.answer(answer("b"))
    await hop.push(request("d", replyTo=name))
    await hop.advance(10)
    await hop.sweep()
    assert [letter["reason"] for letter in await hop.letters()] == ["badAnswer", "badRequest", "timeout"]
    assert not await redis.exists(name)
    assert await hop.problems() == []


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


async def test_a_directory_that_cannot_be_read_stops_nobody(start: Start, redis: Any) -> None:
    await redis.set(Keys("demo").directories[0], "text")
    with capture_logs() as logs:
        hop = await start(reply_lists=["to:*"])
        await hop.push(request("a", replyTo="to:a"))
        await registered(redis)
    assert await hop.in_flight() == ["1"]
    assert [log["event"] for log in logs] == ["the lists of other services are unknown"] + 2 * [
        "other services do not know the lists of this one"
    ]
    assert all("WRONGTYPE" in log["reason"] for log in logs)


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
    """Such as the ``in`` of the next service: others push to it, too, and would not know."""
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
async def test_a_record_that_names_another_list_gets_its_error_nowhere(start: Start, name: str) -> None:
    """Written by an mdispatch of before, or by somebody else."""
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
    assert await hop.problems() == []


async def test_a_policy_of_before_allows_what_is_the_default(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=1)
    await hop.push(request("a", replyTo="demo:reply:a"), request("b", replyTo="other:in"))
    await hop.redis.hdel(hop.keys.policy, "replyLists")
    hop.policy = await Policy.read(hop.redis, hop.keys) or hop.policy
    await hop.advance(10)
    await hop.sweep()
    assert await hop.redis.exists("demo:reply:a")
    assert not await hop.redis.exists("other:in")
