"""The loader of Lua scripts: arguments by name, and no wrong call reaches a server."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from fakeredis import FakeAsyncRedis
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from penstock.base.errors import Fenced, PenstockError, WrongCall, WrongType
from penstock.core.connection import connect
from penstock.core.raw_connection import LARGE, Packed, Word, pack
from penstock.core.script import Script

APPEND = Script(
    "append.lua",
    """-- Push a value, and its twin where there is a place for it.
--
-- KEYS first      list   gets the value
-- KEYS second?    list   gets it too
-- KEYS others...  list   get it as well
-- ARGV value      what is pushed
-- ARGV times      how often
-- Returns how many lists got it, and whether `second` was given. Run twice: twice as many.
redis.call('RPUSH', first, value)
if second then redis.call('RPUSH', second, value) end
for _, other in ipairs(others) do
  for _ = 1, times do redis.call('RPUSH', other, value) end
end
return {1 + (second and 1 or 0) + #others, tostring(second)}
""",
)
RIGHT: dict[str, Any] = {"first": "a", "others": ["b", "c"], "value": "x", "times": 2}


@pytest.fixture
async def fake() -> AsyncIterator["Redis"]:
    async with FakeAsyncRedis(protocol=2) as client:
        yield client


async def test_keys_and_arguments_are_given_by_name(fake: Redis) -> None:
    assert await APPEND(fake, second="s", **RIGHT) == [4, b"s"]
    assert [await fake.lrange(key, 0, -1) for key in "asbc"] == [[b"x"], [b"x"], [b"x", b"x"], [b"x", b"x"]]


async def test_an_optional_key_that_is_left_out_is_nil(fake: Redis) -> None:
    assert await APPEND(fake, **RIGHT) == [3, b"nil"]
    assert await APPEND(fake, second=None, **RIGHT) == [3, b"nil"]
    assert sorted(await fake.keys()) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("others", [[], ["b"], [f"list {number}" for number in range(500)], ("b", "c")])
async def test_a_last_key_takes_any_number(fake: Redis, others: list[str]) -> None:
    assert (await APPEND(fake, **{**RIGHT, "others": others}))[0] == 1 + len(others)


async def test_the_order_of_the_names_in_a_call_means_nothing(fake: Redis) -> None:
    assert await APPEND(fake, times=1, value="x", others=["b"], second="s", first="a") == [3, b"s"]
    assert await fake.lrange("s", 0, -1) == [b"x"]


async def test_any_bytes_are_a_name_and_a_value(fake: Redis) -> None:
    await APPEND(fake, **{**RIGHT, "first": b"\x00\xff", "value": bytes(range(256))})
    assert await fake.lrange(b"\x00\xff", 0, -1) == [bytes(range(256))]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"value": ...}, "append.lua: value is missing"),
        ({"first": ..., "times": ...}, "append.lua: first is missing, times is missing"),
        ({"others": ...}, "append.lua: others is missing"),
        ({"value": None}, "append.lua: value is missing"),
        ({"frist": "a"}, "append.lua: frist is not declared in its header"),
        ({"others": "bc"}, "append.lua: others takes a list"),
        ({"others": b"bc"}, "append.lua: others takes a list"),
        ({"first": ["a", "b"]}, "append.lua: first takes one"),
        ({"value": ["x", "y"]}, "append.lua: value takes one"),
        ({"second": ("s",)}, "append.lua: second takes one"),
    ],
)
async def test_a_wrong_call_never_reaches_the_server(wrong: dict[str, Any], problem: str) -> None:
    named = {name: value for name, value in {**RIGHT, **wrong}.items() if value is not ...}
    async with connect("redis://127.0.0.1:1") as nowhere:
        with pytest.raises(WrongCall, match=f"^{re.escape(problem)}$"):
            await APPEND(nowhere, **named)
        async with nowhere.pipeline() as transaction:
            with pytest.raises(WrongCall):
                APPEND.queue(transaction, **named)
            assert len(transaction) == 0


def test_only_the_last_key_may_take_several() -> None:
    with pytest.raises(WrongCall, match="only the last key and the last argument may take several"):
        Script("wrong.lua", "-- KEYS many...  list  these\n-- KEYS one  list  and this\nreturn 1")
    with pytest.raises(WrongCall, match="only the last key and the last argument may take several"):
        Script("wrong.lua", "-- KEYS one  list  this\n-- ARGV many...  these\n-- ARGV one  and this\nreturn 1")


async def test_the_last_argument_may_take_several(redis: Redis) -> None:
    script = Script(
        "several.lua", "-- KEYS one  list  this\n-- ARGV first  a\n-- ARGV rest...  b\nreturn {first, #rest, rest[2]}"
    )
    assert await script(redis, one="k", first="a", rest=["b", "c"]) == [b"a", 2, b"c"]
    assert await script(redis, one="k", first="a", rest=[]) == [b"a", 0]
    with pytest.raises(WrongCall, match="rest takes a list"):
        await script(redis, one="k", first="a", rest="b")


@pytest.mark.parametrize("others", [[], ["b"], ["b", b"\xff\r\n", "d"]], ids=len)
def test_what_was_packed_ahead_is_the_same_call(others: list[Word]) -> None:
    script = Script("several.lua", "-- KEYS one\n-- KEYS others...\n-- ARGV number\n-- ARGV words...\nreturn #words")
    plain = script.by_source(one="a", others=others, number=7, words=others)
    ahead = script.by_source(one="a", others=Packed(others), number=7, words=Packed(others))
    assert pack([("PING",), ahead]) == pack([("PING",), plain])


@pytest.mark.parametrize("body", [b"", b"x", b"\r\n$1", bytes(5_000)])
def test_a_call_packed_but_for_its_last_argument_is_the_same_call(body: bytes) -> None:
    script = Script("push.lua", "-- KEYS a list what\n-- ARGV bodies... what\nreturn 1")
    assert script.prefix(a="list").pack(body) == pack([script.by_digest(a="list", bodies=[body])])


def test_a_call_is_packed_ahead_only_if_its_last_argument_takes_several() -> None:
    with pytest.raises(WrongCall, match="takes one"):
        APPEND.prefix(first="a", others=[], value="x")


@pytest.mark.parametrize("size", [3, LARGE + 1])
def test_a_call_packed_but_for_what_takes_several_is_the_same_call(size: int) -> None:
    script = Script("both.lua", "-- KEYS a what\n-- KEYS keys... what\n-- ARGV b what\n-- ARGV words... what\nreturn 1")
    several: dict[str, Any] = {"keys": ["k", "l"], "words": [bytes(size), 1, "\udcff"]}
    whole = pack([script.by_digest(a="list", b=2, **several)])
    assert script.fixed(a="list", b=2).pack(several["keys"], several["words"], size) == whole


def test_only_a_script_whose_last_key_and_argument_take_several_is_packed_but_for_these() -> None:
    script = Script("one.lua", "-- KEYS a what\n-- ARGV words... what\nreturn 1")
    with pytest.raises(WrongCall, match="its last key a or its last argument words takes one"):
        script.fixed()


def test_only_a_line_that_begins_with_the_word_declares() -> None:
    script = Script("plain.lua", "-- Of KEYS and\n--   KEYS that  list  is indented\n--KEYS glued  list\nreturn 1")
    command, source, keys = script.by_source()
    assert (command, str(source).split(), keys) == ("EVAL", ["return", "1"], 0)


@pytest.mark.parametrize("second", [None, "s"])
async def test_the_line_in_an_error_is_the_line_in_the_file(redis: Redis, second: str | None) -> None:
    lines = [
        "-- Fails.",
        "-- KEYS first  list  x",
        "-- KEYS second?  list  y",
        "",
        "-- why",
        "local one = 1",
        "",
        "-- ?",
    ]
    script = Script("fails.lua", "\n".join([*lines, "  -- here", "return redis.call('INCR', first) + nothing"]))
    with pytest.raises(ResponseError, match=r"user_script:10:"):
        await script(redis, first="a", second=second)


async def test_a_script_that_the_server_forgot_is_sent_again(redis: Redis) -> None:
    await APPEND(redis, **RIGHT)
    await redis.script_flush()
    await APPEND(redis, **RIGHT)
    await APPEND(redis, **RIGHT)
    assert await redis.llen("a") == 3


async def test_once_known_only_the_digest_travels(redis: Redis) -> None:
    await APPEND(redis, **RIGHT)
    await redis.config_resetstat()
    await APPEND(redis, **RIGHT)
    used = await redis.info("commandstats")
    assert used["cmdstat_evalsha"]["calls"] == 1
    assert "cmdstat_eval" not in used


async def test_in_a_transaction_a_script_cannot_be_unknown(redis: Redis) -> None:
    await APPEND(redis, **RIGHT)
    async with redis.pipeline(transaction=True) as transaction:
        transaction.incr("before")
        APPEND.queue(transaction, **RIGHT)
        transaction.incr("after")
        await redis.script_flush()
        assert await transaction.execute() == [1, [3, b"nil"], 1]
    assert await redis.llen("a") == 2


async def test_an_error_of_the_script_itself_is_not_taken_for_a_missing_one(redis: Redis) -> None:
    await redis.set("a", "no list")
    await APPEND(redis, **{**RIGHT, "first": "other"})
    with pytest.raises((WrongType, ResponseError), match=r"WRONGTYPE|wrong kind of value"):  # Redis 6.2 wraps it
        await APPEND(redis, **RIGHT)
    assert await redis.llen("b") == 2


@pytest.mark.parametrize(("said", "error"), [("WRONGTYPE a holds a hash", WrongType), ("FENCED lease", Fenced)])
async def test_an_error_that_a_script_returns_is_one_of_ours(
    redis: Redis, said: str, error: type[PenstockError]
) -> None:
    script = Script("refuses.lua", "-- ARGV said  the error\nreturn redis.error_reply(said)")
    with pytest.raises(error, match=f"^{said.partition(' ')[2]}$"):
        await script(redis, said=said)
    with pytest.raises(ResponseError, match="other"):
        await script(redis, said="FINE other")


GROW: str = "-- KEYS one  list  it\n-- ARGV word  what\nredis.call('LPUSH', one, word)\nreturn redis.call('LLEN', one)"
FLAGGED = Script("flagged.lua", f"-- FLAGS allow-oom\n{GROW}")


async def test_a_script_flagged_allow_oom_writes_on_a_full_server(
    redis: Redis, fill: Callable[[], Awaitable[object]]
) -> None:
    await fill()
    with pytest.raises(ResponseError, match="maxmemory"):
        await Script("unflagged.lua", GROW)(redis, one="a", word="x")
    assert await FLAGGED(redis, one="a", word="x") == 1
    await redis.script_flush()
    assert await FLAGGED(redis, one="a", word="x") == 2


@pytest.mark.parametrize("kind", ["list", "hash", "string", "zset", "stream", "none"])
async def test_what_lets_a_script_write_on_a_full_server_changes_nothing(redis: Redis, kind: str) -> None:
    makes: dict[str, tuple[Any, ...]] = {
        "list": ("RPUSH", "k", "a"),
        "hash": ("HSET", "k", "f", 1),
        "string": ("SET", "k", 1, "EX", 99),
        "zset": ("ZADD", "k", 1, "a"),
        "stream": ("XADD", "k", "*", "f", 1),
    }
    if kind != "none":
        await redis.execute_command(*makes[kind])
    before, end = await redis.dump("k"), await redis.expiretime("k")
    changes = (await redis.info("persistence"))["rdb_changes_since_last_save"]
    await redis.config_resetstat()
    script = Script("looks.lua", "-- FLAGS allow-oom\n-- KEYS one  list  it\nreturn redis.call('EXISTS', one)")
    assert await redis.execute_command(*script.by_source(one="k")) == int(kind != "none")
    assert await redis.dump("k") == before
    assert await redis.expiretime("k") == end
    assert (await redis.info("persistence"))["rdb_changes_since_last_save"] == changes
    assert await redis.info("errorstats") == {}


async def test_the_line_in_an_error_of_a_flagged_script_is_the_line_in_the_file(redis: Redis) -> None:
    script = Script("fails.lua", "-- FLAGS allow-oom\n-- KEYS one  list  it\n\nreturn one + nothing")
    with pytest.raises(ResponseError, match=r"user_script:4:"):
        await script(redis, one="a")


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("-- FLAGS no-writes\n-- KEYS one  list  it", "FLAGS no-writes is unknown: expected allow-oom"),
        ("-- FLAGS allow-oom\n-- KEYS some?  list  this", "FLAGS allow-oom needs a key that every call gives"),
    ],
)
def test_flags_that_cannot_be_obeyed_are_refused(header: str, problem: str) -> None:
    with pytest.raises(WrongCall, match=f"^wrong.lua: {problem}$"):
        Script("wrong.lua", f"{header}\nreturn 1")


async def test_a_script_with_nothing_but_several_takes_any_number(redis: Redis) -> None:
    script = Script(
        "many.lua", "-- KEYS all...  list  these\n-- ARGV words...  any\nreturn {#all, #words, words[20000]}"
    )
    words: list[Word] = [str(number) for number in range(1, 20_001)]
    assert await script(redis, all=words, words=words) == [20_000, 20_000, b"20000"]
