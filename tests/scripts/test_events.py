"""Readers find the events that scripts write, however many an entry packs."""

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis import Redis

from penstock.base.keys import Keys
from penstock.core.script import Script
from penstock.tracking.events import Entry, TrackedEvent

KEYS = Keys("demo")
TELL = Script(
    "tell.lua",
    """-- Write the given events.
--
-- WITH events: report write_events
-- ARGV history  most events to keep
-- ARGV words... seven an event
-- Returns nothing. Run twice: they are written twice.
for place = 1, #words, 7 do
  local event, id, xid, queue, service, attempt, seconds = unpack(words, place, place + 6)
  report(event, id, xid, queue, service, attempt, tonumber(seconds))
end
write_events('1700000000123', tonumber(history))
""",
)
Words = tuple[str, str, str, str, str, str, str]
WORD = st.sampled_from(["", "a", "b", "\n", "\\", "\\n", "a\nb", "\\\\n", "\n\n"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=5
)
TOLD = st.tuples(
    st.sampled_from(["done", "late"]),
    st.integers(1, 3).map(str),
    WORD,
    WORD,
    st.sampled_from(["1", "2"]),
    st.sampled_from(["", "1", "2"]),
    st.sampled_from(["", "0.000000", "1.500000"]),
)


def write_events(redis: Redis, written: list[Words], history: int = 100_000) -> None:
    redis.execute_command(
        *TELL.by_source(**KEYS.event_keys, history=history, words=[word for each in written for word in each])
    )


def entries(redis: Redis) -> list[tuple[bytes, dict[bytes, bytes]]]:
    found: Any = redis.xrange(KEYS.events)
    return list(found)


def event(word: Words) -> TrackedEvent:
    name, id, xid, queue, service, attempt, seconds = word
    return TrackedEvent(
        name,
        1_700_000_000.123,
        id,
        xid,
        queue,
        service,
        int(attempt) if attempt else None,
        float(seconds) if seconds else None,
    )


def plain(id: int) -> Words:
    return "done", str(id), f"x{id}", "out", "1", "1", ""


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(TOLD, min_size=1, max_size=8))
@example([("done", "1", "\n", "\n", "1", "", "")])
@example([("done", "1", "", "q", "1", "", ""), ("done", "2", "", "q", "1", "", "")])
@example([("done", "1", "a\nb", "q", "1", "", ""), ("done", "2", "a\nb", "q", "1", "", "")])
def test_what_was_written_is_read(redis_url: str, written: list[Words]) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
        write_events(redis, written)
        ((name, fields),) = entries(redis)
        assert list(Entry(name, fields).events()) == [event(each) for each in written]
        for number in range(4):
            about = [event(each) for each in written if each[1] == str(number) or each[2] == str(number)]
            assert list(Entry(name, fields).events({str(number)})) == about


def test_what_is_the_same_for_all_stands_there_once(redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
        write_events(redis, [plain(1), plain(2)])
        ((_, fields),) = entries(redis)
        assert fields == {
            b"first": b"1", b"count": b"2", b"event": b"done", b"id": b"1\n2", b"xid": b"x1\nx2",
            b"at": b"1700000000123", b"queue": b"out", b"service": b"1", b"attempt": b"1", b"seconds": b"",
        }  # fmt: skip


def test_events_are_numbered_through_and_an_entry_has_a_hundred_at_most(redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
        for many in (1, 100, 101, 250):
            write_events(redis, [plain(id) for id in range(many)])
        found = [(int(fields[b"first"]), int(fields[b"count"])) for _, fields in entries(redis)]
        assert found == [(1, 1), (2, 100), (102, 100), (202, 1), (203, 100), (303, 100), (403, 50)]
        assert redis.hgetall(KEYS.metric("events")) == {b"count": b"452"}


@pytest.mark.slow
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(1, 3_000), st.lists(st.sampled_from([1, 1, 2, 7, 100, 260]), min_size=200, max_size=400))
@example(1, [1] * 300)
@example(2_500, [1] * 200 + [260] * 20 + [1] * 100)
def test_about_as_many_are_kept_as_are_wanted(redis_url: str, history: int, batches: list[int]) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
        for many in batches:
            write_events(redis, [plain(id) for id in range(many)], history)
        kept = sum(int(fields[b"count"]) for _, fields in entries(redis))
        step = min(max(history // 10, 1), 1_000)
        assert min(history, sum(batches)) <= kept <= history + 2 * max(step, 100) + 260
        marks: Any = redis.zrange(KEYS.event_marks, 0, -1, withscores=True)
        firsts = {name: int(fields[b"first"]) for name, fields in entries(redis)}
        assert [firsts[name] for name, _ in marks] == [score for _, score in marks]


def test_a_stream_that_was_deleted_goes_on_with_the_next_number(redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
        write_events(redis, [plain(1)] * 30, 10)
        redis.delete(KEYS.events)
        for _ in range(50):
            write_events(redis, [plain(1)], 10)
        firsts = [int(fields[b"first"]) for _, fields in entries(redis)]
        assert firsts[-1] == 80
        assert 10 <= len(firsts) <= 13


def test_none_are_written_where_none_are_wanted(redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
        write_events(redis, [plain(1)], 0)
        assert redis.keys() == []


def test_a_foreign_entry_is_one_unchanged_event() -> None:
    (found,) = Entry(b"1700000000123-0", {b"event": b"done", b"id": b"1", b"xid": b"a\\n\nb"}).events()
    assert found == TrackedEvent("done", 1_700_000_000.123, "1", "a\\n\nb", "", "", None, None)
