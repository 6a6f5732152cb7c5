"""penstock dead: dead letters as a table and as JSON."""

import json
from datetime import UTC, datetime

import pytest
from redis.asyncio import Redis

from penstock.base.keys import Keys
from penstock.tracking.dead_letters import LetterFilter, newest_first
from tests.cli.given import rows
from tests.support.commandline import AWKWARD, penstock
from tests.support.tracked import bury, letter, now, policy, write


async def ids(redis_url: str, *words: str) -> list[str]:
    result = await penstock("dead", "demo", "--json", *words, redis=redis_url)
    assert (result.status, result.error) == (0, "")
    return [json.loads(line)["id"] for line in result.text.splitlines()]


async def test_the_newest_letter_comes_first_with_all_that_is_known(redis: Redis, redis_url: str) -> None:
    at = await now(redis) - 3700
    await bury(redis, letter("3", at=at), letter("4", b"other", at=at + 1, reason="failed", error="no disk"))
    result = await penstock("dead", "demo", redis=redis_url)
    assert (result.status, result.error) == (0, "")
    died = [f"{datetime.fromtimestamp(at + after, UTC):%Y-%m-%d %H:%M:%S}" for after in (1, 0)]
    assert rows(result) == [
        ["4", "failed", "3", died[0], "1 h 1 min", "out", "no disk", "other"],
        ["3", "timeout", "3", died[1], "1 h 1 min", "out", "-", "hello"],
    ]
    assert result.text.endswith("demo: 2 of 2 dead letters (1 failed, 1 timeout)\n")


async def test_json_is_one_whole_letter_per_line(redis: Redis, redis_url: str) -> None:
    raw = letter("3", b"\xff\x00 any bytes", replyTo="answers", first=1)
    await bury(redis, raw, letter("4"))
    result = await penstock("dead", "demo", "--json", redis=redis_url)
    newer, older = map(json.loads, result.text.splitlines())
    assert (newer["id"], older["id"]) == ("4", "3")
    assert older["letter"] == json.loads(raw.decode(errors="surrogateescape"))
    assert older["letter"]["message"].encode(errors="surrogateescape") == b"\xff\x00 any bytes"


async def test_letters_without_an_id_have_a_digest_that_stays(redis: Redis, redis_url: str) -> None:
    await bury(redis, letter(None, reason="poison"), letter(None, reason="poison", at=5), b"not JSON", b"[1]")
    found = await ids(redis_url)
    assert len(set(found)) == 4
    assert all(id.startswith("@") and len(id) == 13 for id in found)
    await bury(redis, letter("9"))
    assert (await ids(redis_url))[1:] == found


async def test_letters_of_mpush_are_shown_as_well(redis: Redis, redis_url: str) -> None:
    await bury(redis, letter(None, reason="maxLength", source=None, queue="out0", attempts=1))
    ((id, *cells),) = rows(await penstock("dead", "demo", redis=redis_url))
    assert id.startswith("@")
    assert (cells[0], cells[1], cells[4]) == ("maxLength", "1", "out0")


async def test_letters_are_chosen_by_reason_and_time(redis: Redis, redis_url: str) -> None:
    at = await now(redis)
    await bury(redis, letter("1", at=at - 7300), letter("2", at=at - 3500), letter("3", reason="failed", at=at - 20))
    await bury(redis, b'{"message":"no time","id":"4"}')
    assert await ids(redis_url) == ["4", "3", "2", "1"]
    assert await ids(redis_url, "--reason", "timeout") == ["2", "1"]
    assert await ids(redis_url, "--since", "90s") == ["3"]
    assert await ids(redis_url, "--since", "60m") == ["3", "2"]
    assert await ids(redis_url, "--since", "1.5h", "--reason", "timeout") == ["2"]
    assert await ids(redis_url, "--since", "1d") == ["3", "2", "1"]
    moment = datetime.fromtimestamp(at - 4000, UTC)
    assert await ids(redis_url, "--since", moment.isoformat()) == ["3", "2"]
    assert await ids(redis_url, "--since", moment.replace(tzinfo=None).isoformat()) == ["3", "2"]
    assert await ids(redis_url, "--limit", "2") == ["4", "3"]


async def test_a_filter_without_matches_is_reported(redis: Redis, redis_url: str) -> None:
    await bury(redis, letter("1"))
    result = await penstock("dead", "demo", "--reason", "timout", redis=redis_url)
    assert result.status == 0
    assert result.text == "demo: no match among 1 dead letters: leave out --reason and --since to see all\n"


@pytest.mark.parametrize("time", ["yesterday", "1", "-1h", "5x", "1h30m", "", "٣h"])
async def test_a_time_that_is_none_is_a_wrong_call(redis: Redis, redis_url: str, time: str) -> None:
    await bury(redis, letter("1"))
    result = await penstock("dead", "demo", f"--since={time}", redis=redis_url)
    assert (result.status, result.out) == (2, b"")
    assert "is not a time: expected one like 90s, 30m, 1h or 2d" in result.error


async def test_terminal_control_characters_are_escaped(redis: Redis, redis_url: str) -> None:
    tricks = "\x1b[31mred\n[bold]\u202e"
    await bury(redis, letter("3", tricks.encode() + b"\xff", error=tricks, reason=tricks, queue=tricks))
    result = await penstock("dead", "demo", redis=redis_url)
    (row,) = rows(result)
    assert row[7] == "\\x1b[31mred\\n[bold]\\u202e\\xff"
    assert row[1] == row[5] == row[6] == "\\x1b[31mred\\n[bold]\\u202e"
    for letter_ in ("\x1b", "\u202e"):
        assert letter_ not in result.text


async def test_a_long_message_is_cut(redis: Redis, redis_url: str) -> None:
    await bury(
        redis, letter("3", b"a" * 60), letter("4", b"b" * 61), letter("5", b"\x00" * 30), letter("6", b"c" * 9**6)
    )
    messages = [row[7] for row in rows(await penstock("dead", "demo", redis=redis_url))]
    assert messages == ["c" * 59 + "…", ("\\x00" * 15)[:59] + "…", "b" * 59 + "…", "a" * 60]


async def test_fields_that_are_not_what_they_should_be_are_shown_as_they_are(redis: Redis, redis_url: str) -> None:
    await bury(
        redis, b'{"id":7,"message":{"a":1},"attempts":"many","at":1e300,"reason":null,"queue":["x"],"error":true}'
    )
    await bury(redis, b'{"id":"\\ud800","message":"\\ud800","at":"now"}', b'{"a":' * 100_000)
    result = await penstock("dead", "demo", redis=redis_url)
    assert result.status == 0
    odd, alone, whole = rows(result)
    assert odd[7].startswith('{"a":{"a":')
    assert alone[0].startswith("@")
    assert whole[:3] == ["7", "-", "many"]
    assert whole[5:7] == ["-", "-"]


async def test_a_table_shows_the_newest_hundred_and_says_so(redis: Redis, redis_url: str) -> None:
    await bury(redis, *(letter(str(id)) for id in range(1, 131)))
    result = await penstock("dead", "demo", redis=redis_url)
    assert [row[0] for row in rows(result)] == [str(id) for id in range(130, 30, -1)]
    assert "130 of 130 dead letters (130 timeout); these are the newest 100: --limit shows more" in result.text
    assert len(rows(await penstock("dead", "demo", "--limit", "120", redis=redis_url))) == 120
    assert len(await ids(redis_url)) == 130


async def test_many_letters_are_read_in_small_pieces_and_none_is_missed(redis: Redis, redis_url: str) -> None:
    await bury(redis, *(letter(str(id)) for id in range(3000)), letter("large", b"x" * 3_000_000), letter("last"))
    sizes, found = list[int](), list[str]()
    async for chunk in newest_first(redis, Keys("demo")):
        sizes.append(len(chunk))
        found += [each.id for each in chunk]
        if len(sizes) == 1:
            await bury(redis, letter("new"))
    assert found == ["last", "large", *map(str, range(2999, -1, -1))]
    assert max(sizes) <= 500
    assert sizes[1] == 1, "after a large one they are read singly"


async def test_no_letters_are_no_failure_but_an_unknown_namespace_is(redis: Redis, redis_url: str) -> None:
    await policy(redis)
    assert (await penstock("dead", "demo", redis=redis_url)).text == "demo: no dead letters\n"
    assert (await penstock("dead", "demo", "--json", redis=redis_url)).text == ""
    result = await penstock("dead", "dmeo", redis=redis_url)
    assert (result.status, result.out) == (1, b"")
    assert "no service has registered in the namespace dmeo" in result.error


async def test_a_key_of_another_type_is_reported(redis: Redis, redis_url: str) -> None:
    await write(redis, "demo:dead", a=1)
    result = await penstock("dead", "demo", redis=redis_url)
    assert (result.status, result.out) == (1, b"")
    assert "demo:dead is a hash, expected a list" in result.error


@pytest.mark.parametrize("namespace", AWKWARD)
async def test_a_namespace_may_have_any_name(redis: Redis, redis_url: str, namespace: str) -> None:
    await redis.lpush(Keys(namespace).dead, letter("1"))
    result = await penstock("dead", namespace, "--json", redis=redis_url)
    assert result.json["id"] == "1"


def test_all_filters_must_match() -> None:
    from penstock.tracking.dead_letters import Letter

    old = Letter(letter("1", at=100))
    assert LetterFilter(frozenset({"1"}), "timeout", 100, 100)(old)
    assert not LetterFilter(frozenset({"2"}))(old)
    assert not LetterFilter(reason="failed")(old)
    assert not LetterFilter(since=100.5)(old)
    assert not LetterFilter(until=99.5)(old)
