"""Answers of workers to their requests."""

import json
from typing import Any

import pytest

from common.context import Context
from penstock.core.script import Script
from services.mdispatch import answers
from tests.scripts.questions import answer, request
from tests.support.hop import Hop, Start


async def test_an_answer_goes_where_the_request_says_and_ends_its_record(start: Start) -> None:
    hop = await start(reply_expire=60)
    await hop.push(request("a", replyTo="to:a"), request("b", replyTo="to:b"))
    await hop.answer(answer("b"), answer("a"))
    assert await hop.held("to:a") == [answer("a")]
    assert await hop.held("to:b") == [answer("b")]
    assert await hop.in_flight() == []
    assert not await hop.redis.exists(hop.keys.message("1"), hop.keys.xid("a"), "res")
    for name in ("to:a", "to:b"):
        assert 115 < await hop.redis.ttl(name) <= 120
    assert await hop.counts() == {"taken": 2, "delivered": 2, "registered": 2, "done": 2, "answers": 2}


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


async def test_an_answer_leaves_the_longer_life_of_a_list_alone(start: Start) -> None:
    """The lists of himporter's long work have a TTL from the beginning, and no monitor ends them."""
    hop = await start(reply_expire=60)
    await hop.redis.lpush("mine", "note")
    await hop.redis.expire("mine", 7_200)
    await hop.push(request("a", replyTo="mine"))
    await hop.answer(answer("a"))
    assert await hop.held("mine") == [b"note", answer("a")]
    assert 7_190 < await hop.redis.ttl("mine") <= 7_200
    assert await hop.redis.zcard(hop.keys.answers) == 0


async def test_each_answer_lets_its_list_live_longer(start: Start) -> None:
    hop = await start(reply_expire=60)
    await hop.push(request("a", replyTo="mine"), request("b", replyTo="mine"))
    await hop.answer(answer("a"))
    await hop.redis.expire("mine", 5)
    await hop.answer(answer("b"))
    assert 115 < await hop.redis.ttl("mine") <= 120


@pytest.mark.parametrize("dies", [False, True], ids=["answered", "dies"])
async def test_a_list_that_was_there_before_its_answer_is_given_no_ttl(start: Start, dies: bool) -> None:
    """Others pushed to the list and do not expect it to expire."""
    hop = await start(message_timeout=10, attempts=1, reply_expire=60)
    await hop.redis.lpush("others", "accepted")
    await hop.push(request("a", replyTo="others"))
    await (hop.advance(10) if dies else hop.answer(answer("a")))
    await hop.sweep()
    assert await hop.redis.llen("others") == 2
    assert await hop.redis.ttl("others") == -1


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


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (request("ünï"), answer("ünï")),
        (request("7"), answer("7")),
        (b'{"meta":{"id":7}}', answer(7)),
        (b'{"meta":{"id":1795880000.123456789}}', b'{"meta":{"id":1795880000.1234567890}}'),
        (request("x" * 600), answer("x" * 600)),
        (b'{"meta":{"id":%s}}' % (b"9" * 600), b'{"meta":{"id":%s.0}}' % (b"9" * 600)),
        (b"12345", answer("12345")),
        (b"12345", answer(12345)),
        (b'{"meta":{"id":"\\ud800"}}', answer("\ud800")),
        (b'{"meta":{"id":1.5}}', answer(1.5)),
        (b'{"meta":{"id":-0.0}}', answer(-0.0)),
        (b'{"meta":{"id":"a"}}', answer("a", attempt=1)),
        (b'{"meta":{"id":"a"}}', answer("a", attempt="first")),
        (b'{"meta":{"id":"a"}}', b' {"meta": {"id": "a", "more": [1]}, "body": "\\u0000"} '),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_answer_names_its_request_as_the_request_named_itself(
    start: Start, asked: bytes, answered: bytes
) -> None:
    hop = await start(reply_to="replies")
    await hop.push(asked)
    await hop.answer(answered)
    assert await hop.held("replies") == [answered]
    assert (await hop.counts())["done"] == 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of scripts that services have called by ``Context.ask``."""
    names: list[str] = []
    ask = Context.ask

    async def note(context: Context[Any], script: Script, /, **named: Any) -> Any:
        names.append(script.name)
        return await ask(context, script, **named)

    monkeypatch.setattr(Context, "ask", note)
    return names


async def test_an_answer_to_an_own_request_needs_no_lookup(start: Start, asked: list[str]) -> None:
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
    hop.is_sound = False
    hop.answers.remember(b"b", 1, "before")
    await hop.push(request("b", replyTo="after"), request("a", replyTo="after"))
    await hop.answer(answer("a"))
    assert await hop.held("after") == [answer("a")]


async def test_no_more_requests_are_remembered_than_fit(
    start: Start, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "MAX_REMEMBERED", 2)
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


async def dead(start: Start, **settings: Any) -> Hop:
    """Return a hop whose request a, with ``replyTo`` ``mine``, died by timeout."""
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
    assert 115 < await hop.redis.ttl("mine") <= 120


@pytest.mark.parametrize("id", [7, 7.0, -1, 1732652584.123456, 1e-7, 2**70, "7", "1.50", "x"])
async def test_an_error_has_the_id_as_the_request_had_it(start: Start, id: object) -> None:
    hop = await start()
    await hop.push(request(id, replyTo="mine"))
    await hop.push_done({"id": 1, "error": "no", "retry": False})
    await hop.sweep()
    (said,) = map(json.loads, await hop.held("mine"))
    assert (said["meta"], isinstance(said["meta"]["id"], str)) == ({"id": id}, isinstance(id, str))


async def test_a_request_that_a_worker_gave_up_for_good_leaves_its_words_where_the_answer_was_wanted(
    start: Start,
) -> None:
    hop = await start(reply_to="replies")
    await hop.push(request("a"))
    await hop.push_done({"id": 1, "error": "no such customer", "retry": False})
    await hop.sweep()
    (said,) = map(json.loads, await hop.held("replies"))
    assert said == {"meta": {"id": "a"}, "error": {"reason": "failed", "attempts": 1, "words": "no such customer"}}
    assert await hop.redis.ttl("replies") == -1


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
async def test_a_request_with_an_invalid_reply_list_is_a_dead_letter(start: Start, reply_to: object, said: str) -> None:
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
