"""penstock revive: return each message to its source, byte for byte, in order."""

import pytest
from redis.asyncio import Redis

from tests.support.clock import Span
from tests.support.commandline import penstock
from tests.support.tracked import KEYS, bury, counted, events, left, letter, now, policy, write

BINARY = b"\x00\xff\xfe\r\n\x7f\"\\/ \xed\xa0\x80 \xf0\x9f\x98\x80 '"


async def test_letters_go_back_to_where_they_came_from(redis: Redis, redis_url: str) -> None:
    await redis.lpush("in", "already waiting")
    await bury(redis, letter("1", b"one"), letter("2", b"two"), letter("3", b"three"), letter("4", source="res"))
    result = await penstock("revive", "demo", "3", "1", "4", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert result.text == "revived 3 messages: 2 to in, 1 to res\n"
    assert await redis.lrange("in", 0, -1) == [b"three", b"one", b"already waiting"], "as if pushed now, oldest first"
    assert await redis.lrange("res", 0, -1) == [b"hello"]
    assert await left(redis) == ["2"]
    assert await counted(redis, "revived") == 3


async def test_bytes_come_back_exactly(redis: Redis, redis_url: str) -> None:
    every = bytes(range(256))
    script = "return redis.call('LPUSH', KEYS[1], cjson.encode({message = ARGV[1], source = 'in', id = ARGV[2]}))"
    payloads = [every, BINARY, b"", b"\xff", b'{"meta": {"id": "\\ud83d\\ude00"}}', "ünï ✓".encode(), every * 1000]
    for id, payload in enumerate(payloads):
        await redis.eval(script, 1, KEYS.dead, payload, str(id))
    result = await penstock("revive", "demo", "--all", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    assert (await redis.lrange("in", 0, -1))[::-1] == payloads


async def test_run_twice_the_second_does_nothing(redis: Redis, redis_url: str) -> None:
    await bury(redis, letter("1"))
    assert (await penstock("revive", "demo", "1", redis=redis_url)).status == 0
    await policy(redis)
    again = await penstock("revive", "demo", "1", redis=redis_url)
    assert (again.status, again.text) == (1, "revived 0 messages\n")
    assert again.error == "penstock: no such dead letter: 1\n"
    every = await penstock("revive", "demo", "--all", redis=redis_url)
    assert (every.status, every.text, every.error) == (0, "revived 0 messages\n", "")
    assert await redis.llen("in") == 1
    assert await counted(redis, "revived") == 1


async def test_ids_that_are_not_there_are_named_and_the_others_go_back(redis: Redis, redis_url: str) -> None:
    await bury(redis, letter("1"), letter("2"))
    result = await penstock("revive", "demo", "1", "7", "no\nsuch", "--json", redis=redis_url)
    assert result.status == 1
    output = result.json
    assert (output["revived"], output["total"], output["left"]) == ({"in": 1}, 1, {})
    assert output["problems"] == ["no such dead letter: 7, no\\nsuch"]
    assert await left(redis) == ["2"]


async def test_letters_are_chosen_by_reason_and_time(redis: Redis, redis_url: str) -> None:
    at = await now(redis)
    await bury(redis, letter("1", at=at - 100), letter("2", at=at - 100, reason="failed"), letter("3", at=at - 10))
    words = ["revive", "demo", "--all", "--reason", "timeout", "--since", "1m"]
    assert (await penstock(*words, redis=redis_url)).text == "revived 1 message: 1 to in\n"
    assert await left(redis) == ["2", "1"]
    narrowed = await penstock("revive", "demo", "1", "2", "--reason", "failed", redis=redis_url)
    assert (narrowed.status, narrowed.error) == (1, "penstock: no such dead letter: 1\n")
    assert await left(redis) == ["1"]


async def test_a_letter_without_an_id_goes_back_by_its_digest(redis: Redis, redis_url: str) -> None:
    await bury(
        redis, letter(None, b"p", reason="poison"), letter(None, b"q", source=None, reason="maxLength", queue="out0")
    )
    first, second = await left(redis)
    result = await penstock("revive", "demo", first, second, redis=redis_url)
    assert (result.status, result.text) == (0, "revived 2 messages: 1 to in, 1 to out0\n")
    assert (await redis.lrange("in", 0, -1), await redis.lrange("out0", 0, -1)) == ([b"p"], [b"q"])


async def test_letters_that_are_alike_to_the_byte_all_go_back(redis: Redis, redis_url: str) -> None:
    await bury(redis, *[letter(None)] * 5, letter("1"))
    (id,) = set(await left(redis)) - {"1"}
    assert (await penstock("revive", "demo", id, redis=redis_url)).text == "revived 5 messages: 5 to in\n"
    assert await left(redis) == ["1"]


async def test_a_destination_that_is_no_list_is_named_and_its_letters_stay(redis: Redis, redis_url: str) -> None:
    await redis.set("text", "x")
    await write(redis, "table", a=1)
    await bury(redis, letter("1"), letter("2", source="text"), letter("3", source="table"), letter("4", source="text"))
    result = await penstock("revive", "demo", "--all", redis=redis_url)
    assert (result.status, result.text) == (1, "revived 1 message: 1 to in\n")
    assert sorted(result.error.splitlines()) == [
        "penstock: 1 letter stayed: table is a hash, expected a list",
        "penstock: 2 letters stayed: text is a string, expected a list",
    ]
    assert await left(redis) == ["4", "3", "2"]


@pytest.mark.parametrize(("key", "kind"), [("demo:metrics:revived", "hash"), ("demo:events", "stream")])
async def test_a_key_of_another_type_is_reported_before_anything_is_written(
    redis: Redis, redis_url: str, key: str, kind: str
) -> None:
    await bury(redis, letter("1"))
    await redis.set(key, "text")
    result = await penstock("revive", "demo", "1", redis=redis_url)
    assert (result.status, result.out) == (1, b"")
    assert f"{key} holds a string, expected a {kind}" in result.error
    assert await left(redis) == ["1"]
    assert await redis.exists("in") == 0


async def test_dead_letters_of_another_type_are_reported(redis: Redis, redis_url: str) -> None:
    await redis.set("demo:dead", "text")
    for words in (["revive", "demo", "1"], ["bury", "demo", "1"]):
        result = await penstock(*words, redis=redis_url)
        assert "demo:dead is a string, expected a list" in result.error


async def test_an_invalid_counter_holds_up_no_message(redis: Redis, redis_url: str) -> None:
    await redis.hset("demo:metrics:revived", "count", "x")
    await bury(redis, letter("1"))
    assert (await penstock("revive", "demo", "1", redis=redis_url)).status == 0
    assert await redis.llen("in") == 1


async def test_foreign_letters_stay_and_are_reported(redis: Redis, redis_url: str) -> None:
    strange = [
        b"not JSON",
        b'{"source":"in"}',
        b'{"message":1,"source":"in"}',
        b'{"message":"m"}',
        b'{"message":"\\ud800"}',
    ]
    await bury(redis, *strange, letter("1"))
    result = await penstock("revive", "demo", "--all", redis=redis_url)
    assert (result.status, result.text) == (1, "revived 1 message: 1 to in\n")
    assert "5 letters stayed: not written by Penstock, or without a list to go back to" in result.error
    assert (await redis.lrange("demo:dead", 0, -1))[::-1] == strange


async def test_a_list_with_any_name_gets_its_messages_back(redis: Redis, redis_url: str) -> None:
    name = b"\xff \n{x}"
    await bury(redis, letter("1", source=name.decode(errors="surrogateescape")))
    result = await penstock("revive", "demo", "1", redis=redis_url)
    assert (result.status, result.text) == (0, "revived 1 message: 1 to \\xff \\n{x}\n")
    assert await redis.lrange(name.decode(errors="surrogateescape").encode(errors="surrogateescape"), 0, -1) == [
        b"hello"
    ]


async def test_events_tell_of_tracked_messages(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    await bury(redis, letter("1", xid="a\xff"), letter(None, reason="poison"), letter("2"))
    began = await now(redis)
    await penstock("revive", "demo", "1", redis=redis_url)
    await penstock("bury", "demo", "2", redis=redis_url)
    revived, buried = await events(redis)
    assert int(revived.pop(b"at")) / 1000 == Span(began, await now(redis))
    assert revived == {
        b"event": b"revived", b"id": b"1", b"xid": "a\xff".encode(), b"queue": b"in", b"service": b"", b"attempt": b"3",
        b"seconds": b"",
    }  # fmt: skip
    assert (buried[b"event"], buried[b"id"], len(buried)) == (b"buried", b"2", 8)


async def test_no_events_are_written_if_none_are_wanted(redis: Redis, redis_url: str) -> None:
    await policy(redis, eventCapacity=0)
    await bury(redis, letter("1"))
    await penstock("revive", "demo", "1", redis=redis_url)
    assert await redis.exists("demo:events") == 0


@pytest.mark.parametrize("words", [["demo"], ["demo", "1", "--all"], ["demo", "--all", "--since", "soon"]])
@pytest.mark.parametrize("command", ["revive", "bury"])
async def test_a_wrong_call_moves_nothing(redis: Redis, redis_url: str, command: str, words: list[str]) -> None:
    await bury(redis, letter("1"))
    assert (await penstock(command, *words, redis=redis_url)).status == 2
    assert await left(redis) == ["1"]


async def test_an_unknown_namespace_is_a_failure(redis: Redis, redis_url: str) -> None:
    for words in (["revive", "demo", "--all"], ["bury", "demo", "--all", "--yes"]):
        result = await penstock(*words, redis=redis_url)
        assert (result.status, result.out) == (1, b"")
        assert "no service has registered in the namespace demo" in result.error
