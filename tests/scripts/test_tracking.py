"""Tracking of a message from its registration to its end."""

import hashlib
import json

import pytest

from tests.support.clock import Span
from tests.support.hop import Start

SHA1 = hashlib.sha1(b"hello").hexdigest()
MIB = 1_048_576
ODD = [
    b"",
    b"\0",
    bytes(range(256)),
    b"\xff\xfe\xc3\x28",
    b"\xed\xa0\x80",
    b'{"meta":{"id":"\xff"}}',
    b'{"meta":',
    b'{"meta":[]}',
    b"{}",
    b"[1]",
    b"-1",
    b"1" * 600,
    "Größe ✓".encode(),
]


async def test_a_request_is_delivered_unchanged_with_a_record_of_it(start: Start) -> None:
    hop = await start(message_timeout=10, message_expire=60)
    before = await hop.now()
    await hop.push(b"first", b"second", b"12345")
    after = await hop.now()
    assert await hop.held() == [b"first", b"second", b"12345"]
    record = await hop.record(3)
    assert (
        record.items()
        >= {
            "xid": "12345",
            "service": "1",
            "attempt": "1",
            "queue": "out",
            "message": "12345",
        }.items()
    )
    assert record.keys() == {"timestamp", "xid", "deadline", "service", "attempt", "queue", "message", "number"}
    assert before <= float(record["timestamp"]) <= after
    assert float(record["deadline"]) == pytest.approx(float(record["timestamp"]) + 10, abs=1e-5)
    assert await hop.redis.zscore(hop.keys.deadlines, "3") == pytest.approx(float(record["deadline"]), abs=1e-5)
    assert await hop.ids() == ["3", "2", "1"]
    assert 55 < await hop.redis.ttl(hop.keys.message("3")) <= 60
    assert 55 < await hop.redis.ttl(hop.keys.xid("12345")) <= 60
    assert await hop.counts() == {"taken": 3, "delivered": 3, "registered": 3}


@pytest.mark.parametrize(
    ("message", "xid", "kind"),
    [
        (b"12345", "12345", "number"),
        (b"00", "0", "number"),
        (b"007", "7", "number"),
        (b'{"meta":{"id":"order 7"}}', "order 7", "meta"),
        (b' {"meta":{"id":7}, "body": 1}', "7", "metaNumber"),
        ('{"meta":{"id":"Größe"}}'.encode(), "Größe", "meta"),
        (b'{"meta":{"id":"' + b"x" * 512 + b'"}}', "x" * 512, "meta"),
        (b'{"meta":{"id":"' + b"x" * 513 + b'"}}', hashlib.sha1(b"x" * 513).hexdigest(), "metaLong"),
        (b'{"meta":{"id":"7"}}', '"7"', "meta"),
        (b'{"meta":{"id":1795880000.123456789}}', "1795880000.123456789", "metaNumber"),
        (b"hello", SHA1, "sha1"),
    ],
)
async def test_a_request_is_known_by_what_its_worker_can_see(start: Start, message: bytes, xid: str, kind: str) -> None:
    hop = await start()
    await hop.push(message)
    assert await hop.chain(xid) == {"id": "1", "type": kind}
    assert (await hop.record(1))["xid"] == xid
    await hop.push_done(xid)
    assert await hop.counts() == {"taken": 1, "delivered": 1, "registered": 1, "done": 1}


@pytest.mark.parametrize(
    "message",
    [
        b"1" * 513,
        b"1.5",
        b"-1",
        b"",
        "٣".encode(),
        b'{"meta":{"id":""}}',
        b'{"meta":{"id":null}}',
        b'{"meta":{"id":true}}',
        b'{"meta":{"id":[1]}}',
        b'{"meta":"id"}',
        b'["meta"]',
        b'{"meta":{"id":"a"}',
        b'{"meta":{"id":"\xff"}}',
        b"{" * 100_000,
    ],
)
async def test_a_request_that_has_no_name_is_known_by_the_sha1_of_its_bytes(start: Start, message: bytes) -> None:
    hop = await start()
    await hop.push(message)
    assert await hop.held() == [message]
    assert await hop.chain(hashlib.sha1(message).hexdigest()) == {"id": "1", "type": "sha1"}


@pytest.mark.parametrize("message", [*ODD, b"\xa5\0" * 33, b"\xa5\0" * (MIB // 2)], ids=lambda message: message[:9])
async def test_any_bytes_come_through_a_retry_and_into_a_dead_letter_unchanged(start: Start, message: bytes) -> None:
    hop = await start(message_timeout=10, attempts=2, backoff=[5])
    await hop.push(message)
    await hop.advance(10)
    await hop.sweep()
    await hop.advance(5)
    await hop.sweep()
    assert await hop.held() == [message, message]
    await hop.advance(10)
    await hop.sweep()
    assert [letter["message"] for letter in await hop.letters()] == [message]
    assert await hop.counts() == {
        "taken": 1,
        "delivered": 1,
        "registered": 1,
        "timeout": 2,
        "retry": 1,
        "dead": 1,
    }


async def test_every_step_of_a_life_is_an_event(start: Start) -> None:
    hop = await start(message_timeout=10, attempts=3, backoff=[5])
    began = await hop.now()
    await hop.push(b"hello")
    await hop.push_done({"id": 1, "touch": 20})
    await hop.advance(20)
    await hop.sweep()
    await hop.advance(5)
    await hop.sweep()
    await hop.push_done({"id": 1, "error": "no luck"})
    await hop.sweep()
    await hop.advance(5)
    await hop.sweep()
    await hop.push_done("1")
    assert await hop.events() == [
        ("registered", "1", "1"),
        ("touched", "1", "1"),
        ("timeout", "1", "1"),
        ("retry", "1", "2"),
        ("failed", "1", "2"),
        ("retry", "1", "3"),
        ("done", "1", "3"),
    ]
    entries = await hop.redis.xrange(hop.keys.events)
    fields = {b"first", b"count", b"event", b"id", b"xid", b"at", b"queue", b"service", b"attempt", b"seconds"}
    assert [set(entry) for _, entry in entries] == [fields] * 7
    assert {(entry[b"xid"], entry[b"queue"], entry[b"service"]) for _, entry in entries} == {
        (SHA1.encode(), b"out", b"1")
    }
    seconds = [float(entry[b"seconds"] or -1) for _, entry in entries]
    elapsed = Span(0, await hop.now() - began)
    assert seconds == [-1, *(elapsed + each for each in (0, 20, 25, 0, 30, 0))]


async def test_no_events_are_kept_where_none_are_wanted_and_else_not_many_more_than_wanted(start: Start) -> None:
    hop = await start(event_capacity=0)
    await hop.push(b"a")
    await hop.push_done("1")
    assert not await hop.redis.exists(hop.keys.events)
    hop = await start(event_capacity=100)
    for _ in range(20):
        await hop.push(*[b"a"] * 50)
    assert 100 <= len(await hop.events()) <= 200


async def test_the_policy_says_what_monitors_must_know(start: Start) -> None:
    hop = await start(reply_to="replies", backoff=[1, 5])
    assert await hop.texts(hop.keys.policy) == {
        "messageTimeout": "10",
        "queueTimeout": "0",
        "messageExpire": "60",
        "messageCapacity": "100000",
        "attempts": "3",
        "backoff": "[1.0, 5.0]",
        "replyExpire": "60",
        "eventCapacity": "100000",
        "source": "in",
        "pending": "pending",
        "out": "out",
        "done": "demo:done",
        "doneBy": "either",
        "acceptLate": "0",
        "res": "res",
        "resPending": "pending:answers",
        "replyTo": "replies",
        "replyLists": '["*"]',
    }
    assert hop.policy.backoff.delay_after(2) == 5
    hop = await start(done="finished")
    assert hop.policy.done == "finished"
    assert "replyTo" not in await hop.texts(hop.keys.policy)
    assert json.loads((await hop.texts(hop.keys.policy))["backoff"]) == {"base": 1, "cap": 5}


async def test_a_foreign_key_costs_a_message_its_record_and_nothing_more(start: Start) -> None:
    hop = await start(message_timeout=10)
    await hop.redis.set(hop.keys.message("2"), "not a record")
    await hop.redis.set(hop.keys.xid(SHA1), "not a record")
    await hop.push(b"before", b"by id", b"hello")
    assert await hop.held() == [b"before", b"by id", b"hello"]
    await hop.push_done(SHA1)
    assert (await hop.counts())["done:unknown"] == 1
    await hop.push_done("3", hashlib.sha1(b"by id").hexdigest())
    assert await hop.in_flight() == ["1", "2"]
    await hop.advance(10)
    await hop.sweep()
    assert await hop.counts() == {
        "taken": 3,
        "delivered": 3,
        "registered": 3,
        "done": 1,
        "done:unknown": 2,
        "timeout": 1,
        "expired": 1,
    }
    assert await hop.redis.get(hop.keys.message("2")) == b"not a record"


async def test_after_a_batch_the_next_one_is_taken_with_the_wait(start: Start) -> None:
    hop = await start()
    batches = [[b"%d" % number for number in range(first, first + 5)] for first in range(0, 30, 5)]
    for batch in batches:
        await hop.redis.config_resetstat()
        await hop.push(*batch)
    assert (await hop.redis.info("commandstats"))["cmdstat_evalsha"]["calls"] == 2  # one takes, one delivers
    assert await hop.held() == [message for batch in batches for message in batch]
    assert [(await hop.record(number + 1))["xid"] for number in range(30)] == [f"{number}" for number in range(30)]


async def test_after_a_batch_of_answers_the_next_one_is_taken_with_the_wait(start: Start) -> None:
    hop = await start()
    names = [f"{number}" for number in range(20)]
    await hop.push(*(json.dumps({"meta": {"id": name, "replyTo": "mine"}}) for name in names))
    for first in range(0, 20, 5):
        await hop.redis.config_resetstat()
        await hop.answer(*({"meta": {"id": name}} for name in names[first : first + 5]))
    assert (await hop.redis.info("commandstats"))["cmdstat_evalsha"]["calls"] == 2  # one takes, one delivers
    assert [json.loads(each)["meta"]["id"] for each in await hop.redis.lrange("mine", 0, -1)] == names[::-1]
