"""Events with messages: every byte if the setting is on, and none if it is off."""

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis import Redis as Blocking
from redis.asyncio import Redis

from penstock.base.errors import SettingsError
from penstock.base.keys import Keys
from penstock.core.script import Script
from penstock.spark.decode import decode_entries
from penstock.spark.options import connect
from services.mdispatch.settings import Settings
from tests.support.commandline import penstock
from tests.support.hop import Start

KEYS = Keys("demo")
AWKWARD = [b"", b"\0", b"\n", b"\\", b"\\n", b"\\\n", b"\xff\xfe", b"a\nb\\", b"\\\\n\n\n\\", b'{"a":"\\n"}', b"plain"]
TELL = Script(
    "tell.lua",
    """-- Write the given events.
--
-- WITH events: report write_events
-- ARGV history  most events to keep
-- ARGV words... two an event: what happened, and a message, `-` for none
-- Returns nothing. Run twice: they are written twice.
for place = 1, #words, 2 do
  report(words[place], '7', 'x', 'out', '1', 1, nil, words[place + 1] ~= '-' and words[place + 1])
end
write_events('1700000000123', tonumber(history))
""",
)


def rows(redis_url: str) -> list[dict[str, Any]]:
    """Return the stream as the Spark source decodes it."""
    with connect(redis_url) as redis:
        entries: Any = redis.execute_command("XRANGE", KEYS.events, "-", "+")
    return [row for batch in decode_entries("demo", entries) for row in batch.to_pylist()]


def read_back(redis_url: str) -> list[tuple[str, bytes | None]]:
    return [(row["event"], row["message"]) for row in rows(redis_url)]


def sizes(redis: Blocking) -> list[int]:
    found: Any = redis.xrange(KEYS.events)
    return [int(fields[b"count"]) for _, fields in found]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["registered", "registered", "delayed"]),
            st.sampled_from(AWKWARD) | st.binary(max_size=20),
        ).filter(lambda each: each[1] != b"-"),
        min_size=1,
        max_size=8,
    )
)
@example([("registered", b"\n"), ("registered", b"\n")])
@example([("registered", b"\\"), ("delayed", b""), ("registered", b"n")])
@example([("registered", b""), ("registered", b"")])
def test_a_message_is_read_as_it_was_written(redis_url: str, events: list[tuple[str, bytes]]) -> None:
    with Blocking.from_url(redis_url) as redis:
        redis.flushall()
        given = [(event, message if event == "registered" else b"-") for event, message in events]
        redis.execute_command(
            *TELL.by_source(**KEYS.event_keys, history=1000, words=[w for each in given for w in each])
        )
    assert read_back(redis_url) == [(event, message if event == "registered" else None) for event, message in events]


def test_an_entry_has_some_messages_and_a_large_one_alone(redis_url: str) -> None:
    large, huge = b"\n" * 100_000, b"\\\n" * 1_000_000
    with Blocking.from_url(redis_url) as redis:
        redis.flushall()
        words = [word for message in (*[large] * 5, huge, b"", *[b"x"] * 120) for word in ("registered", message)]
        redis.execute_command(*TELL.by_source(**KEYS.event_keys, history=1000, words=words))
        assert sizes(redis) == [2, 2, 1, 1, 100, 21]
    assert [message for _, message in read_back(redis_url)] == [*[large] * 5, huge, b"", *[b"x"] * 120]
    assert [row["number"] for row in rows(redis_url)] == list(range(1, 128))


def test_entries_with_and_without_messages_are_read_together(redis_url: str) -> None:
    with Blocking.from_url(redis_url) as redis:
        redis.flushall()
        for words in (["registered", "-"], ["registered", "a\\", "registered", "b"], ["done", "-", "late", "-"]):
            redis.execute_command(*TELL.by_source(**KEYS.event_keys, history=1000, words=words))
    expected = [("registered", None), ("registered", b"a\\"), ("registered", b"b"), ("done", None), ("late", None)]
    assert read_back(redis_url) == expected


def test_of_an_entry_that_cannot_be_read_the_message_is_not_shown() -> None:
    fields = [b"event", b"registered", b"count", b"x", b"message", b"secret"]
    [batch] = decode_entries("demo", [(b"1-0", fields)])
    [row] = batch.to_pylist()
    assert row["message"] is None
    assert row["malformed"] == '{"event": "registered", "count": "x", "message": "(6 bytes)"}'


async def test_mdispatch_tells_the_messages_that_it_registers(redis: Redis, redis_url: str, start: Start) -> None:
    hop = await start(event_messages=True)
    later = b'{"meta": {"id": "late", "delay": 100}}'
    await hop.push(*AWKWARD, later, b"7")
    await hop.push_done({"id": 1}, {"id": 13})
    found = read_back(redis_url)
    assert [message for event, message in found if event == "registered"] == [*AWKWARD, later, b"7"]
    assert [message for event, message in found if event != "registered"] == [None] * 3
    assert sorted(event for event, _ in found if event != "registered") == ["delayed", "done", "done"]


async def test_without_the_setting_entries_are_as_they_were(redis: Redis, redis_url: str, start: Start) -> None:
    hop = await start()
    await hop.push(*AWKWARD)
    found: Any = await redis.xrange(KEYS.events)
    assert {tuple(fields) for _, fields in found} == {
        (b"first", b"count", b"event", b"id", b"xid", b"at", b"queue", b"service", b"attempt", b"seconds")
    }
    assert {message for _, message in read_back(redis_url)} == {None}


async def test_trace_and_explain_read_such_events_and_do_not_show_the_messages(
    redis: Redis, redis_url: str, start: Start
) -> None:
    hop = await start(event_messages=True)
    await hop.push(b"a\nsecret\\", b"\xffsecret", *(b"secret" * 10_000 for _ in range(20)))
    await hop.push_done({"id": 2})
    traced = await penstock("trace", "demo", "2", "--json", redis=redis_url)
    assert [(each["event"], each["queue"]) for each in traced.json["events"]] == [
        ("registered", "out"),
        ("done", "out"),
    ]
    for words in (("trace", "demo", "2"), ("explain", "demo", "2"), ("explain", "demo", "1")):
        result = await penstock(*words, redis=redis_url)
        assert result.status == 0, result.error
        assert "secret" not in result.text
    assert "Message 2" in (await penstock("explain", "demo", "2", redis=redis_url)).text


def test_messages_without_events_are_refused() -> None:
    names: dict[str, Any] = {"redis": "redis://h", "redis_namespace": "demo", "in_": "in", "pending": "p", "out": "out"}
    assert Settings(**names, event_messages=True).event_messages
    with pytest.raises(SettingsError, match="eventMessages: has no effect with eventCapacity 0"):
        Settings(**names, event_messages=True, event_capacity=0)
