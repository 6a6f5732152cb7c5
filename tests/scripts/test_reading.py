"""Scripts read at most ``bytes`` plus one message, whatever the sizes of the messages."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from penstock.core.read_size import EVIDENCE, MIN_SMALL_MESSAGES, READ_AT_ONCE, SMALL, Sizes, fitting
from penstock.core.script import Script
from tests.support.harness import ROOT

COUNTING: Final = """
local bytes_seen = redis
local function counted(reply)
  local size = 0
  for _, word in ipairs(type(reply) == 'table' and reply or {reply}) do
    size = size + (type(word) == 'string' and #word or 0)
  end
  if size > 0 then bytes_seen.call('INCRBY', 'bytes read', size) end
  return reply
end
local redis = setmetatable({
  call = function(...) return counted(bytes_seen.call(...)) end,
  pcall = function(...) return counted(bytes_seen.pcall(...)) end,
}, {__index = bytes_seen})
""".replace("\n", " ")
"""Prefix of a script that counts the bytes of all replies that the script gets."""

BYTES: Final = 20_000
OTHER_BYTES: Final = 100
"""Bytes that a script reads besides messages: a token, counters, the time."""
LARGE: Final = 50_000


def counting(path: str) -> Script:
    script = Script.read(ROOT / path)
    script._body = COUNTING + script._body
    return script


NAMED: Final[dict[str, Any]] = {"source": "in", "pending": "pending", "batch": 1_000, "bytes": BYTES}
move, following, dispatch, finish, backfill, read, put_back, rehome = map(
    counting,
    (
        "services/mpush/lua/move.lua",
        "penstock/core/lua/next.lua",
        "services/mdispatch/lua/dispatch.lua",
        "common/tracking/lua/finish.lua",
        "penstock/composition/rollout/lua/backfill.lua",
        "penstock/transfer/lua/read.lua",
        "penstock/transfer/lua/put_back.lua",
        "penstock/composition/rollout/lua/rehome.lua",
    ),
)


def minimal_call(script: Script) -> dict[str, Any]:
    """Return the arguments of a minimal call: each key with its own name as value, all other arguments 0 or empty."""
    counted = ("holds", "missing", "taken", "events", "events_written", "events_marks")
    wanted = {name: mark for name, mark in script._keys if mark != "?" or name in counted}
    keys: dict[str, Any] = {name: [] if mark == "..." else name for name, mark in wanted.items()}
    return keys | {name: [] if mark == "..." else 0 for name, mark in script._arguments}


def of(messages: list[bytes]) -> tuple[int, int]:
    return len(messages), max(map(len, messages), default=0)


class Reader:
    """Reads all of ``in``; each method is one call of a script and returns number and largest size."""

    def __init__(self, redis: Any, sizes: Sizes, total: int) -> None:
        self.redis, self.sizes, self.total, self.done = redis, sizes, total, 0

    async def mpush(self) -> tuple[int, int]:
        more = {"subscribers": ["a", "b"], "limit": 0, "overflow": "block", "token": 0}
        moved, _, largest, _ = await move(self.redis, **NAMED, **more, **self.sizes.named)
        return moved, largest

    async def vpush(self, whole: int = 1) -> tuple[int, int]:
        await self.redis.hset("state", "source", "me")
        more = {"next": self.done + 1, "whole": whole, "settled": "", "most": 5_000, "who": "me", "token": 0}
        messages, _ = await following(self.redis, **NAMED, state="state", **more, **self.sizes.named)
        return of(messages)

    async def shovel(self) -> tuple[int, int]:
        return await self.vpush(whole=0)

    async def mdispatch(self) -> tuple[int, int]:
        call = minimal_call(dispatch) | NAMED | self.sizes.named | {"capacity": 1, "prefix": 1, "first": 1}
        _, messages = await dispatch(self.redis, **call)
        await self.redis.delete("pending", "holds")
        return of(messages)

    async def monitor(self) -> tuple[int, int]:
        _, messages = await finish(self.redis, **minimal_call(finish) | NAMED | {"lasting": "[]"})
        await self.redis.delete("pending", "holds")
        return of(messages)

    async def backfill(self) -> tuple[int, int]:
        await self.redis.hset("taken", "count", self.total)
        keys = {"source": "in", "target": "out", "taken": "taken", "delivered": "delivered"}
        count, largest = await backfill(self.redis, **keys, batch=1_000, bytes=BYTES, **self.sizes.named)
        return count, largest

    async def copy(self) -> tuple[int, int]:
        bounds = {"older": self.done, "known": 0, "batch": 1_000, "bytes": BYTES}
        return of(await read(self.redis, source="in", **bounds, **self.sizes.named))

    async def put_back(self) -> tuple[int, int]:
        if not self.done:
            await self.redis.hset("state", "source", "me")
        keys = {"pending": "in", "source": "out", "state": "state"}
        return await put_back(self.redis, **keys, who="me", settled=0, most=1_000, bytes=BYTES), 0

    async def rename(self) -> tuple[int, int]:
        keys = {"former": "in", "present": "out", "notes": "notes", "counters": []}
        more = {"noted": "", "settled": "", "older": 0, "most": 1_000, "bytes": BYTES}
        await self.redis.hset("notes", "in", "")
        count, _ = await rehome(self.redis, **keys, **more)
        return count, 0


READERS: Final = [
    Reader.mpush,
    Reader.vpush,
    Reader.shovel,
    Reader.mdispatch,
    Reader.monitor,
    Reader.backfill,
    Reader.copy,
    Reader.put_back,
    Reader.rename,
]
each_reader = pytest.mark.parametrize("once", READERS, ids=lambda once: once.__name__)
on_a_server = settings(
    max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
small, large = st.integers(0, 300), st.integers(SMALL - 300, LARGE)
mixtures = st.lists(st.tuples(small | large, st.integers(1, 30)), min_size=1, max_size=20).map(
    lambda runs: [size for size, count in runs for _ in range(count)]
)


def most_read(url: str, once: Callable[[Reader], Awaitable[tuple[int, int]]], sizes: Sizes, messages: list[int]) -> int:
    """Read messages of the sizes ``messages``; return the most bytes that one call of the script read."""

    async def drain() -> int:
        async with Redis.from_url(url) as redis:
            await redis.flushall()
            for first in range(0, len(messages), 100):
                await redis.lpush("in", *(b"x" * size for size in messages[first : first + 100]))
            reader, most = Reader(redis, sizes, len(messages)), 0
            while reader.done < len(messages):
                await redis.delete("bytes read")
                count, largest = await once(reader)
                assert count > 0
                reader.done += count
                sizes.note(count, largest)
                most = max(most, int(await redis.get("bytes read") or 0))
            assert most or not any(messages)
            return most - OTHER_BYTES

    return asyncio.run(drain())


def calm() -> Sizes:
    """Return sizes as of a reader that has seen enough small messages to read ``READ_AT_ONCE`` of them."""
    sizes = Sizes()
    sizes.note(EVIDENCE * READ_AT_ONCE, 100)
    return sizes


@pytest.mark.slow
@each_reader
def test_a_script_reads_at_most_its_bytes_and_one_message_whatever_the_sizes(redis_url: str, once: Any) -> None:
    @on_a_server
    @given(mixtures)
    def reads(messages: list[int]) -> None:
        assert most_read(redis_url, once, Sizes(), messages) <= BYTES + max(messages)

    reads()


@pytest.mark.slow
@each_reader
def test_few_messages_exceed_the_bound_when_large_ones_follow_small_ones(redis_url: str, once: Any) -> None:
    """One is the last sample, which ends the reading of several; and up to a quarter is read twice, for the samples."""

    @on_a_server
    @given(small, st.integers(1, 300), large, st.integers(1, 100))
    @example(0, 1, SMALL - 300, 100)
    @example(100, 64, SMALL, 100)
    def reads(size: int, count: int, then: int, more: int) -> None:
        assert most_read(redis_url, once, calm(), [size] * count + [then] * more) <= BYTES * 5 // 4 + 2 * then

    reads()


@pytest.mark.slow
@each_reader
def test_large_messages_among_many_small_ones_exceed_the_bound_by_few_messages(redis_url: str, once: Any) -> None:
    @on_a_server
    @given(mixtures)
    def reads(messages: list[int]) -> None:
        assert most_read(redis_url, once, calm(), messages) <= BYTES + READ_AT_ONCE * max(messages)

    reads()


def test_several_are_read_at_once_after_many_small_ones_and_no_more_after_a_large_one() -> None:
    sizes = Sizes()
    assert sizes.named == {"unseen": 1, "largest": 0}
    sizes.note_all([b"x" * SMALL] * (MIN_SMALL_MESSAGES - 1))
    assert sizes.unseen == 1
    assert sizes.note_all([b"xx"]) == 2
    assert sizes.unseen == MIN_SMALL_MESSAGES // EVIDENCE
    assert sizes.largest < SMALL
    sizes.note(EVIDENCE * READ_AT_ONCE - MIN_SMALL_MESSAGES - 1, 3)
    assert sizes.unseen == READ_AT_ONCE - 1
    sizes.note(1_000, 3)
    assert sizes.unseen == READ_AT_ONCE
    sizes.note_all([b"x", b"x" * (SMALL + 1)])
    assert sizes.named == {"unseen": 1, "largest": 0}


@pytest.mark.parametrize(("size", "count"), [(1, 2), (3, 2), (4, 3), (13, 4), (100, 4)])
def test_what_fits_ends_with_the_message_that_makes_it_large_enough(size: int, count: int) -> None:
    assert fitting([b"", b"xxx", b"x", b"y" * 9], size) == count
