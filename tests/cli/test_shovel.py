"""penstock shovel: messages move from list to list, once and in order, however the call ends."""

import asyncio
import os
import pty
import random
import re
import signal
import socket
import sys
import threading
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.testing.server import EmbeddedServer
from penstock.transfer.copy import Copy, Overtaken
from penstock.transfer.move import BACK_BYTES, Move, address_of
from penstock.transfer.protocol import agree
from tests.cli.test_pull import left, push
from tests.commandline import AWKWARD, TIMEOUT_SECONDS, Result, ended, penstock, running, until
from tests.reliability.proxy import Proxy, ProxyConnection, received, send
from tests.reliability.two_servers import assert_same

HALFWAY = b"halfway"
"""Part of all messages of some middle batches; tests inject a fault at the first request with it."""

SMALLEST_LIMIT = 1 << 20
"""Smallest possible limit (bytes) of a server's message size."""


@pytest.fixture(scope="module")
def there_server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def there_url(there_server: EmbeddedServer) -> str:
    return there_server.url


@pytest.fixture
async def there(there_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(there_url) as client:
        await client.flushall()
        yield client


@pytest.fixture
def proxy(there_server: EmbeddedServer) -> Iterator[Proxy]:
    """Yield a proxy to the target that can be cut."""
    with Proxy(there_server.port) as started:
        yield started


class ReplyGate(Proxy):
    """Proxy that holds back replies from the first request with ``word`` until ``open`` is called."""

    def __init__(self, port: int, word: bytes = HALFWAY) -> None:
        super().__init__(port)
        self._word = word
        self.closed, self._open = threading.Event(), threading.Event()
        self._open.set()

    def met_by(self, request: bytes) -> None:
        if self._word in request and not self.closed.is_set():
            self._open.clear()
            self.closed.set()

    def open(self) -> None:
        self._open.set()

    def connection(self, client: socket.socket, server: socket.socket) -> ProxyConnection:
        return HeldBackConnection(self, client, server)

    def wait(self) -> None:
        self._open.wait(TIMEOUT_SECONDS)


class HeldBackConnection(ProxyConnection):
    _proxy: ReplyGate

    def _forward_replies(self) -> None:
        while reply := received(self._server):
            self._proxy.wait()
            send(self._client, reply)
        self._proxy.wait()
        self.cut()


@pytest.fixture
def gate(there_server: EmbeddedServer) -> Iterator[ReplyGate]:
    with ReplyGate(there_server.port) as started:
        yield started


def messages_with_trouble(count: int = 20_000, size: int = 0) -> list[bytes]:
    """Return different messages of arbitrary bytes, 2,000 of them with ``HALFWAY`` from the middle on."""
    noise = random.Random(4).randbytes(512)
    return [
        b"%d " % number
        + noise[: number % 40]
        + (HALFWAY * 4 if count // 2 <= number < count // 2 + 2_000 else b"\0\xff\r\n")
        + b"x" * size
        for number in range(count)
    ]


async def shovel(*words: str | bytes) -> Result:
    return await penstock("shovel", *words)


def shoveling(*words: str) -> AbstractAsyncContextManager[Process]:
    return running("shovel", *words, redis=None)


async def finished(process: Process) -> tuple[int | None, bytes, str]:
    out, err = await asyncio.wait_for(process.communicate(), TIMEOUT_SECONDS)
    return process.returncode, out, err.decode()


async def wait_for(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, TIMEOUT_SECONDS)


async def kill_once(event: threading.Event, *words: str) -> str:
    """Run shovel, kill it after ``event``; return its stderr."""
    async with shoveling(*words) as process:
        await wait_for(event)
        process.kill()
        return (await ended(process))[1]


async def keys(redis: Redis) -> list[bytes]:
    found: Any = await redis.keys("*")
    return sorted(found)


async def assert_moved(redis: Redis, there: Redis, messages: list[bytes]) -> None:
    """Check that ``messages`` are in ``out``, once and in order, and that no other key is left on either server."""
    assert_same(await left(there, "out"), messages)
    assert (await keys(redis), await keys(there)) == ([], [b"out"] if messages else [])


async def test_twenty_thousand_messages_of_any_bytes_are_moved_in_order(
    redis: Redis, there: Redis, redis_url: str, there_url: str
) -> None:
    messages = [b"", b"\0", b"\xff\xfe", bytes(range(256)), b"x" * 3_000_000, *messages_with_trouble()]
    await push(redis, messages)
    result = await shovel(redis_url, "in", there_url, "out")
    assert (result.status, result.error) == (0, "")
    size = sum(map(len, messages))
    assert re.fullmatch(
        rf"moved 20,005 messages \({size:,} bytes\) from in to out in [\d.]+ s \([\d,]+/s\)\n", result.text
    )
    await assert_moved(redis, there, messages)


async def test_json_output(redis: Redis, there: Redis, redis_url: str, there_url: str) -> None:
    await push(redis, [b"one", b"two", b"three"])
    output = (await shovel(redis_url, "in", there_url, "out", "--json")).json
    assert output.pop("seconds") > 0
    assert output.pop("rate") > 0
    assert output == {"from": "in", "to": "out", "copy": False, "interrupted": False, "messages": 3, "bytes": 11}


async def test_what_is_pushed_meanwhile_stays_unless_it_goes_on_until_empty(
    redis: Redis, there: Redis, redis_url: str, gate: ReplyGate
) -> None:
    messages, later = messages_with_trouble(), [b"later"]
    for words in ([], ["--until-empty"]):
        await push(redis, messages)
        async with shoveling(redis_url, "in", gate.url, "out", *words) as process:
            await wait_for(gate.closed)
            await push(redis, later)
            gate.open()
            assert (await ended(process))[0] == 0
        assert await left(redis) == ([] if words else later)
        assert_same(await left(there, "out"), messages + (later if words else []))
        await there.delete("out")
        await redis.delete("in")
        gate.closed.clear()


@pytest.mark.parametrize("words", [["--limit", "3"], ["--limit", "3", "--until-empty"], ["--limit", "3", "--copy"]])
async def test_no_more_than_the_limit(
    redis: Redis, there: Redis, redis_url: str, there_url: str, words: list[str]
) -> None:
    messages = [b"%d" % number for number in range(10)]
    await push(redis, messages)
    assert (await shovel(redis_url, "in", there_url, "out", *words)).status == 0
    assert await left(there, "out") == messages[:3]
    assert await left(redis) == (messages if "--copy" in words else messages[3:])
    assert (await keys(redis), await keys(there)) == ([b"in"], [b"out"])


async def test_it_pushes_to_the_new_end_of_what_is_there(
    redis: Redis, there: Redis, redis_url: str, there_url: str
) -> None:
    await push(there, [b"first"], "out")
    for message in (b"second", b"third"):
        await push(redis, [message])
        await shovel(redis_url, "in", there_url, "out")
    await assert_moved(redis, there, [b"first", b"second", b"third"])


async def test_the_other_list_may_be_on_the_same_server(redis: Redis, redis_url: str) -> None:
    await push(redis, [b"one", b"two"])
    assert (await shovel(redis_url, "in", redis_url, "out")).status == 0
    assert await left(redis, "out") == [b"one", b"two"]
    other = redis_url.removesuffix("/0") + "/1"
    assert (await shovel(redis_url, "out", other, "out")).status == 0
    assert await keys(redis) == []
    assert (await shovel(other, "out", redis_url, "out", "--copy")).status == 0
    assert await left(redis, "out") == [b"one", b"two"]


@pytest.mark.parametrize("name", AWKWARD)
async def test_lists_may_have_any_name(redis: Redis, there: Redis, redis_url: str, there_url: str, name: str) -> None:
    await push(redis, [b"one"], name)
    assert (await shovel(redis_url, name, there_url, name)).status == 0
    assert await left(there, name) == [b"one"]
    assert (await keys(redis), await keys(there)) == ([], [name.encode()])


async def test_the_list_here_need_not_have_a_name_in_utf8(
    redis: Redis, there: Redis, redis_url: str, there_url: str
) -> None:
    await push(redis, [b"one"], b"\xff")  # type: ignore[arg-type]
    assert (await shovel(redis_url, b"\xff", there_url, "out")).status == 0
    await assert_moved(redis, there, [b"one"])
    await push(redis, [b"one"])
    refused = await shovel(redis_url, "in", there_url, b"\xff")
    assert (refused.status, await keys(redis)) == (2, [b"in"])
    assert "is not UTF-8" in refused.error


# Refused calls


async def test_a_missing_list_or_another_type_is_refused(
    redis: Redis, there: Redis, redis_url: str, there_url: str
) -> None:
    missing = await shovel(redis_url, "in", there_url, "out")
    assert (missing.status, missing.error) == (1, "penstock: in is empty or does not exist: nothing to move\n")
    await redis.hset("in", "field", "value")
    assert f"in on {redis_url} is a hash, expected a list" in (await shovel(redis_url, "in", there_url, "out")).error
    await there.set("out", "value")
    await push(redis, [b"one"], "real")
    wrong = await shovel(redis_url, "real", there_url, "out")
    assert (wrong.status, wrong.out) == (1, b"")
    assert f"out on {there_url} is a string, expected a list" in wrong.error
    assert (await keys(redis), await keys(there)) == ([b"in", b"real"], [b"out"])


@pytest.mark.parametrize("words", [[], ["--copy"]])
async def test_a_list_is_not_moved_to_itself(
    redis: Redis, server: EmbeddedServer, redis_url: str, words: list[str]
) -> None:
    await push(redis, [b"one"])
    with Proxy(server.port) as proxy:
        for other in (redis_url, redis_url.replace("127.0.0.1", "localhost"), proxy.url):
            result = await shovel(redis_url, "in", other, "in", *words)
            assert (result.status, await keys(redis), await left(redis)) == (2, [b"in"], [b"one"])
            assert "is the same list on the same server" in result.error


@pytest.mark.parametrize(
    "words", [["nonsense", "in", "redis://h", "out"], ["redis://h:port/0", "in", "redis://h", "o"]]
)
async def test_a_url_that_is_none_is_a_wrong_call(words: list[str]) -> None:
    result = await shovel(*words)
    assert result.status == 2
    assert "is not the URL of a server" in result.error


async def test_the_server_that_does_not_answer_is_named_without_its_password(redis: Redis, redis_url: str) -> None:
    await push(redis, [b"one"])
    away = "redis://user:secret@127.0.0.1:1/0"
    for words in ((redis_url, "in", away, "out"), (away, "in", redis_url, "out")):
        result = await shovel(*words)
        assert (result.status, result.out) == (1, b"")
        assert result.error == (
            "penstock: cannot reach redis://user:***@127.0.0.1:1/0: connection refused; "
            "start a server there, or name another\n"
        )
    assert await keys(redis) == [b"in"]


async def test_no_password_is_ever_shown_or_kept(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    with EmbeddedServer(directory=tmp_path, requirepass="secret") as locked, Proxy(locked.port) as proxy:
        url = proxy.url.replace("redis://", "redis://:secret@")
        await push(redis, [b"one"])
        wrong = await shovel(redis_url, "in", url.replace("secret", "wrongone"), "out")
        assert wrong.status == 1
        assert "refuses the login" in wrong.error
        fault = proxy.fault("EVALSHA", forward=False)
        killed = await kill_once(fault.met, redis_url, "in", url, "out")
        (state,) = [key for key in await keys(redis) if key.endswith(b":sequence")]
        kept: Any = await redis.hgetall(state)
        assert kept[b"to"] == f"{proxy.url.replace('redis://', 'redis://:***@')} out".encode()
        again = await shovel(redis_url, "in", url, "out")
        assert again.status == 0
        assert await keys(redis) == []
        for text in (wrong.error, killed, again.text, again.error, repr(kept)):
            assert "secret" not in text
            assert "wrongone" not in text


async def test_help_and_wrong_calls() -> None:
    text = " ".join((await penstock("shovel", "--help")).text.split())
    for words in ("--until-empty", "an empty list is an error", "13 seconds at most", "LIST:from:<id> on the target"):
        assert words in text
    for wrong in (["redis://h", "in", "redis://h"], ["redis://h", "in", "redis://h", "out", "--limit", "-1"]):
        assert (await shovel(*wrong)).status == 2


def test_a_place_is_the_same_however_it_is_written() -> None:
    same = [
        "redis://h",
        "redis://h:6379",
        "redis://u:p@h/0",
        "rediss://:p@h:6379/0?ssl_cert_reqs=none",
        "redis://H?db=0",
    ]
    assert len({address_of(url) for url in same}) == 1
    others = ["redis://h/1", "redis://h?db=1", "redis://h:6380", "redis://other", "unix:///h", "unix:///h?db=1"]
    several = ["redis+sentinel://u:p@a:1,b:2/main", "redis+sentinel://a:1,b:2/other", "redis+sentinel://a:1/main"]
    assert len({address_of(url) for url in [same[0], *others, *several]}) == 1 + len(others) - 1 + len(several)
    assert address_of(several[0]) == address_of("redis+sentinel://a:1,b:2/main")


# Faults on the link


@pytest.mark.parametrize("words", [[], ["--copy"]])
@pytest.mark.parametrize("forward", [True, False])
async def test_a_link_that_is_cut_before_or_after_a_reply_loses_and_doubles_nothing(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy, words: list[str], forward: bool
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=forward)
    async with shoveling(redis_url, "in", proxy.url, "out", *words) as process:
        await wait_for(fault.met)
        fault.cut()
        status, out, err = await finished(process)
    assert (status, err.count("the link is broken")) == (0, 1)
    assert b"20,000 messages" in out
    if words:
        assert_same(await left(redis), messages)
        await redis.delete("in")
    await assert_moved(redis, there, messages)


@pytest.mark.parametrize("verb", ["LLEN", "MULTI", "EVALSHA", "EVAL\r", f"{BACK_BYTES}\r"])
@pytest.mark.parametrize("forward", [True, False])
async def test_a_link_to_the_source_that_is_cut_loses_and_doubles_nothing(
    redis: Redis, there: Redis, server: EmbeddedServer, there_url: str, verb: str, forward: bool
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    await redis.script_flush()
    with Proxy(server.port) as proxy:
        fault = proxy.fault(verb, forward=forward)
        async with shoveling(proxy.url, "in", there_url, "out") as process:
            await wait_for(fault.met)
            fault.cut()
            status, err = await ended(process)
        if verb == "LLEN":
            assert (status, await left(redis)) == (1, messages)
            assert f"penstock: cannot reach {proxy.url}" in err
            status = (await shovel(proxy.url, "in", there_url, "out")).status
    assert status == 0
    assert err.count("the link is broken, retrying") == verb.startswith("EVAL")
    await assert_moved(redis, there, messages)


@pytest.mark.parametrize("forward", [True, False])
async def test_a_killed_shovel_is_resumed_by_the_same_call(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy, forward: bool
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=forward)
    await kill_once(fault.met, redis_url, "in", proxy.url, "out")
    pending, state = [key for key in await keys(redis) if key != b"in"]
    assert re.fullmatch(rb"in:shovel:[0-9a-f]{12}", pending)
    assert state == pending + b":sequence"
    last = await shovel(redis_url, "in", proxy.url.replace("redis://", "redis://default:@"), "out")
    assert (last.status, last.error) == (0, "")
    await assert_moved(redis, there, messages)


async def test_what_a_killed_shovel_sent_and_a_link_held_back_is_refused_when_it_comes_late(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy
) -> None:
    messages = [b"%d" % number for number in range(500)]
    await push(redis, messages)
    fault = proxy.fault("EVALSHA", forward=False)
    async with shoveling(redis_url, "in", proxy.url, "out") as process:
        await wait_for(fault.met)
        assert (await shovel(redis_url, "in", proxy.url, "out")).status == 0
        fault.late()
        await wait_for(fault.answered)
        process.kill()
        await ended(process)
    await assert_moved(redis, there, messages)


@pytest.mark.slow
async def test_killed_again_and_again_it_loses_and_doubles_nothing(
    redis: Redis, there: Redis, redis_url: str, there_url: str
) -> None:
    messages = messages_with_trouble(60_000, size=500)
    await push(redis, messages)
    for turn in range(8):
        before = await there.llen("out")
        async with shoveling(redis_url, "in", there_url, "out", "--limit", "7000") as process:

            async def has_more(before: int = before) -> bool:
                return await there.llen("out") > before or process.returncode is not None

            await until(has_more)
            await asyncio.sleep(random.Random(turn).uniform(0, 0.05))
            if process.returncode is None:
                process.kill()
            await ended(process)
    assert (await shovel(redis_url, "in", there_url, "out")).status == 0
    await assert_moved(redis, there, messages)


async def test_the_rest_of_a_shovel_killed_at_its_very_end_is_removed_by_the_next(
    redis: Redis, there: Redis, redis_url: str, there_url: str, proxy: Proxy
) -> None:
    messages = messages_with_trouble(100)
    await push(redis, messages)
    fault = proxy.fault("DEL", "out:from:", forward=False)
    await kill_once(fault.met, redis_url, "in", proxy.url, "out")
    assert len(await keys(there)) == 2
    new = [b"new %d" % number for number in range(10)]
    await push(redis, new)
    # The proxy's URL counts as another target than the server's, so only the same URL resumes the call.
    assert (await shovel(redis_url, "in", proxy.url, "out")).status == 0
    await assert_moved(redis, there, [*messages, *new])


async def test_of_two_at_once_the_later_goes_on_and_the_earlier_is_refused(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=True)
    async with shoveling(redis_url, "in", proxy.url, "out") as earlier:
        await wait_for(fault.met)
        assert (await shovel(redis_url, "in", proxy.url, "out")).status == 0
        await assert_moved(redis, there, messages)
        await push(redis, [b"new"])
        fault.cut()
        status, err = await ended(earlier)
    assert status == 1
    assert "another shovel from in to out has taken over" in err
    assert await left(redis) == [b"new"]
    await redis.delete("in")
    await assert_moved(redis, there, messages)


async def test_many_at_once_lose_and_double_nothing(redis: Redis, there: Redis, redis_url: str, there_url: str) -> None:
    messages = messages_with_trouble(60_000, size=100)
    await push(redis, messages)
    results = await asyncio.gather(*(shovel(redis_url, "in", there_url, "out", "--until-empty") for _ in range(4)))
    for result in results:
        assert result.status == 0 or "another shovel" in result.error or "does not exist" in result.error
    if await keys(redis):
        assert (await shovel(redis_url, "in", there_url, "out")).status == 0
    assert_same(await left(there, "out"), messages)
    assert await keys(redis) == []


async def test_two_targets_share_a_list(redis: Redis, there: Redis, redis_url: str, there_url: str) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    results = await asyncio.gather(*(shovel(redis_url, "in", there_url, out) for out in ("a", "b")))
    assert all(result.status == 0 or "does not exist" in result.error for result in results)
    assert sorted(await left(there, "a") + await left(there, "b")) == sorted(messages)
    assert await keys(redis) == []


# Signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_settles_what_is_on_its_way_and_leaves_the_rest(
    redis: Redis, there: Redis, redis_url: str, gate: ReplyGate, number: signal.Signals
) -> None:
    messages = messages_with_trouble(40_000, size=1_000)
    await push(redis, messages)
    async with shoveling(redis_url, "in", gate.url, "out", "--json") as process:
        await wait_for(gate.closed)
        process.send_signal(number)
        gate.open()
        status, out, err = await finished(process)
    assert (status, err) == (130, "")
    assert b'"interrupted": true' in out
    arrived, rest = await left(there, "out"), await left(redis)
    assert_same(arrived + rest, messages)
    assert rest
    assert f'"messages": {len(arrived)},'.encode() in out
    assert (await keys(redis), await keys(there)) == ([b"in"], [b"out"])


@pytest.mark.parametrize("forward", [True, False])
async def test_what_is_never_answered_is_put_back_unless_it_has_arrived(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy, forward: bool
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=forward)
    async with shoveling(redis_url, "in", proxy.url, "out") as process:
        await wait_for(fault.met)
        if forward:
            await until(lambda: _is_long(there, len(messages)))
        process.send_signal(signal.SIGINT)
        status, err = await ended(process)
    assert (status, err) == (130, "")
    arrived, rest = await left(there, "out"), await left(redis)
    assert_same(arrived + rest, messages)
    assert bool(rest) is not forward
    assert await keys(there) == [b"out"]
    assert await keys(redis) == ([b"in"] if rest else [])


async def test_many_unconfirmed_messages_are_put_back_in_order_in_few_transactions(
    redis: Redis, there: Redis, there_url: str
) -> None:
    messages = [b"%d" % number for number in range(20_000)]
    move = Move(redis, b"in", there, "out", there_url)
    await agree(move, move._wire, "out")
    await push(redis, messages)
    await redis.rename("in", move.pending)
    await push(redis, [b"later"])
    await redis.config_resetstat()
    await move.end()
    transactions = (await redis.info("commandstats"))["cmdstat_exec"]["calls"]
    assert transactions < 10
    assert_same(await left(redis), [*messages, b"later"])
    assert (await keys(redis), await keys(there)) == ([b"in"], [])


@pytest.mark.slow
async def test_a_signal_while_the_other_server_is_away_leaves_all_for_the_next_call(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    with EmbeddedServer(directory=tmp_path, aof=True) as server, Proxy(server.port) as proxy:
        fault = proxy.fault(HALFWAY.decode(), forward=False)
        async with shoveling(redis_url, "in", proxy.url, "out") as process:
            await wait_for(fault.met)
            os.kill(server.pid, signal.SIGSTOP)
            process.send_signal(signal.SIGINT)
            status, err = await ended(process, 60)
            os.kill(server.pid, signal.SIGCONT)
        assert status == 1
        late, remains = "not everything was put back within 10 s", "what may not have arrived is in in:shovel:"
        assert re.search(rf"penstock: {late}: {remains}[0-9a-f]{{12}}: the same call goes on with it\n", err)
        assert (await shovel(redis_url, "in", proxy.url, "out")).status == 0
        async with Redis.from_url(server.url) as there:
            await assert_moved(redis, there, messages)


# Faults of the servers


async def test_a_restart_of_the_other_server_is_waited_for(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    messages = messages_with_trouble(60_000, size=500)
    await push(redis, messages)
    with EmbeddedServer(directory=tmp_path, aof=True) as server, ReplyGate(server.port) as gate:
        async with shoveling(redis_url, "in", gate.url, "out") as process:
            await wait_for(gate.closed)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            gate.open()
            status, err = await ended(process, 60)
        assert (status, err.count("the link is broken")) == (0, 1)
        async with Redis.from_url(server.url) as there:
            await assert_moved(redis, there, messages)


async def test_a_server_that_is_away_for_a_moment_is_waited_for(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    await push(redis, [b"one", b"two"])
    with EmbeddedServer(directory=tmp_path) as server:
        async with Redis.from_url(server.url) as there:
            await there.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        async with shoveling(redis_url, "in", server.url, "out") as process:
            await until(lambda: _has_begun(redis))
            await asyncio.to_thread(server.kill)
            assert process.stderr is not None
            line = await asyncio.wait_for(process.stderr.readline(), TIMEOUT_SECONDS)
            await asyncio.to_thread(server.start)
            assert (await ended(process, 60))[0] == 0
        assert line.startswith(b"penstock: the link is broken, retrying: ")
        async with Redis.from_url(server.url) as there:
            await assert_moved(redis, there, [b"one", b"two"])


async def _has_begun(redis: Redis) -> bool:
    return bool(await redis.keys("*:sequence"))


async def test_a_full_server_is_reported_and_nothing_is_lost(
    redis: Redis, there: Redis, redis_url: str, there_url: str
) -> None:
    await push(redis, [b"one", b"two"])
    await there.config_set("maxmemory", "1")
    try:
        result = await shovel(redis_url, "in", there_url, "out")
    finally:
        await there.config_set("maxmemory", "0")
    assert result.status == 1
    assert "0 messages were moved to out before this:\npenstock: the other server: " in result.error
    assert "maxmemory" in result.error
    assert await left(redis) == [b"one", b"two"]
    assert (await shovel(redis_url, "in", there_url, "out")).status == 0
    await assert_moved(redis, there, [b"one", b"two"])


@pytest.fixture
async def size_limited(there: Redis) -> AsyncIterator[Redis]:
    """Yield the target with messages limited to ``SMALLEST_LIMIT`` bytes."""
    await there.config_set("proto-max-bulk-len", SMALLEST_LIMIT)
    yield there
    await there.config_set("proto-max-bulk-len", 512 << 20)


@pytest.mark.parametrize("words", [[], ["--copy"]])
async def test_a_message_that_is_too_large_for_the_other_server_is_named_and_stays_with_all_behind_it(
    redis: Redis, size_limited: Redis, redis_url: str, there_url: str, words: list[str]
) -> None:
    before = [b"x" * SMALLEST_LIMIT, *messages_with_trouble(3_000)]
    behind = [b"x" * (SMALLEST_LIMIT + 1), b"small", b"x" * (SMALLEST_LIMIT + 2), *messages_with_trouble(1_500)]
    await push(redis, before + behind)
    result = await shovel(redis_url, "in", there_url, "out", *words)
    place, done = (3_002, "copied") if words else (1, "moved")
    assert (result.status, result.out) == (1, b"")
    assert result.error == (
        f"penstock: 3,001 messages were {done} to out before this:\n"
        f"penstock: message {place:,} from the old end of in has 1,048,577 bytes, and the other server takes 1,048,576 "
        f"at most: raise its proto-max-bulk-len, or take the message out (LINDEX in -{place} shows it)\n"
    )
    assert_same(await left(size_limited, "out"), before)
    assert_same(await left(redis), before + behind if words else behind)
    assert (await keys(redis), await keys(size_limited)) == ([b"in"], [b"out"])
    assert await redis.lindex("in", -place) == behind[0]
    await size_limited.config_set("proto-max-bulk-len", 2 * SMALLEST_LIMIT)
    await size_limited.delete("out")
    assert (await shovel(redis_url, "in", there_url, "out", *words)).status == 0
    assert_same(await left(size_limited, "out"), before + behind if words else behind)


@pytest.mark.parametrize("words", [[], ["--copy"]])
@pytest.mark.parametrize("forward", [True, False])
async def test_a_link_that_is_cut_before_a_message_that_is_too_large_skips_nothing(
    redis: Redis, size_limited: Redis, redis_url: str, proxy: Proxy, words: list[str], forward: bool
) -> None:
    before, behind = [HALFWAY], [b"x" * (SMALLEST_LIMIT + 1), *messages_with_trouble(100)]
    await push(redis, before + behind)
    fault = proxy.fault(HALFWAY.decode(), forward=forward)
    async with shoveling(redis_url, "in", proxy.url, "out", *words) as process:
        await wait_for(fault.met)
        fault.cut()
        status, err = await ended(process)
    assert (status, err.count("the link is broken")) == (1, 1)
    assert "has 1,048,577 bytes" in err
    assert await left(size_limited, "out") == before
    assert await left(redis) == (before + behind if words else behind)


async def test_a_copy_names_a_message_that_is_too_large_by_its_place_after_others_were_taken(
    redis: Redis, size_limited: Redis, redis_url: str, gate: ReplyGate
) -> None:
    messages = messages_with_trouble(40_000, size=1_000)
    large = b"x" * (SMALLEST_LIMIT + 1)
    await push(redis, [*messages, large])
    async with shoveling(redis_url, "in", gate.url, "out", "--copy") as process:
        await wait_for(gate.closed)
        await redis.rpop("in", 3_000)
        gate.open()
        status, err = await ended(process)
    assert status == 1
    assert "LINDEX in -37001 shows it" in err
    assert await redis.lindex("in", -37_001) == large


async def test_a_user_there_who_may_not_ask_for_the_largest_message_suffices(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    await push(redis, [b"one", b"two"])
    with EmbeddedServer(directory=tmp_path) as server:
        async with Redis.from_url(server.url) as there:
            await there.execute_command("ACL", "SETUSER", "default", "-config")
            assert (await shovel(redis_url, "in", server.url, "out")).status == 0
            await assert_moved(redis, there, [b"one", b"two"])


async def test_a_target_that_is_no_list_any_more_leaves_the_rest_in_its_list(
    redis: Redis, there: Redis, redis_url: str, gate: ReplyGate
) -> None:
    messages = messages_with_trouble(40_000, size=1_000)
    await push(redis, messages)
    async with shoveling(redis_url, "in", gate.url, "out") as process:
        await wait_for(gate.closed)
        async with there.pipeline(transaction=True) as transaction:
            transaction.rename("out", "aside")
            transaction.set("out", "value")
            await transaction.execute()
        gate.open()
        status, err = await ended(process)
    assert status == 1
    assert "messages were moved to out before this:" in err
    assert "the other server: out holds a string, expected a list" in err
    assert_same(await left(there, "aside") + await left(redis), messages)
    assert (await keys(redis), await keys(there)) == ([b"in"], [b"aside", b"out"])


async def test_a_target_that_lost_its_data_is_reported_with_the_way_out(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy
) -> None:
    messages = messages_with_trouble(40_000, size=1_000)
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=True)
    await kill_once(fault.met, redis_url, "in", proxy.url, "out")
    (state,) = [key for key in await keys(redis) if key.endswith(b":sequence")]
    settled = int(await redis.hget(state, "sequence") or 0)
    assert settled
    await there.flushall()
    result = await shovel(redis_url, "in", proxy.url, "out")
    assert result.status == 1
    assert f"HDEL {state.decode()} source sequence" in result.error
    await redis.hdel(state, "source", "sequence")
    assert (await shovel(redis_url, "in", proxy.url, "out")).status == 0
    assert (await left(there, "out"), await keys(redis)) == (messages[settled:], [])


async def test_a_source_that_lost_its_data_is_reported_with_the_way_out(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=True)
    async with shoveling(redis_url, "in", proxy.url, "out") as process:
        await wait_for(fault.met)
        await until(lambda: _is_long(there, len(messages)))
        process.kill()
        await ended(process)
    pending, state = [key for key in await keys(redis) if key != b"in"]
    await redis.delete(pending)
    await push(redis, [b"new"])
    result = await shovel(redis_url, "in", proxy.url, "out")
    assert result.status == 1
    assert "are not here any more" in result.error
    assert f"HDEL {state.decode()} source sequence" in result.error


async def _is_long(redis: Redis, length: int) -> bool:
    return await redis.llen("out") == length


# Copies


async def test_a_copy_leaves_the_list_as_it_is(redis: Redis, there: Redis, redis_url: str, there_url: str) -> None:
    messages = [b"", b"\xff\0", b"x" * 3_000_000, *messages_with_trouble()]
    await push(redis, messages)
    result = await shovel(redis_url, "in", there_url, "out", "--copy")
    assert (result.status, result.error) == (0, "")
    assert result.text.startswith("copied 20,003 messages (")
    assert_same(await left(redis), messages)
    assert_same(await left(there, "out"), messages)
    assert (await keys(redis), await keys(there)) == ([b"in"], [b"out"])


@pytest.mark.parametrize("words", [[], ["--until-empty"]])
async def test_a_copy_is_not_disturbed_by_what_is_pushed_or_taken_meanwhile(
    redis: Redis, there: Redis, redis_url: str, gate: ReplyGate, words: list[str]
) -> None:
    messages, later = messages_with_trouble(40_000, size=1_000), [b"later %d" % number for number in range(5_000)]
    await push(redis, messages)
    async with shoveling(redis_url, "in", gate.url, "out", "--copy", *words) as process:
        await wait_for(gate.closed)
        await push(redis, later)
        await redis.rpop("in", 3_000)
        gate.open()
        status, err = await ended(process)
    assert (status, err) == (0, "penstock: 3,000 messages were taken from the list meanwhile: they are in the copy\n")
    assert_same(await left(there, "out"), messages + (later if words else []))
    assert_same(await left(redis), (messages + later)[3_000:])


async def test_a_copy_that_is_overtaken_says_so(redis: Redis, there: Redis, redis_url: str, gate: ReplyGate) -> None:
    messages = messages_with_trouble(40_000, size=1_000)
    await push(redis, messages)
    async with shoveling(redis_url, "in", gate.url, "out", "--copy") as process:
        await wait_for(gate.closed)
        await redis.rpop("in", 39_990)
        gate.open()
        status, err = await ended(process)
    assert status == 1
    assert "messages were copied to out before this:" in err
    assert "have been taken from the list" in err
    copied = await left(there, "out")
    assert_same(copied, messages[: len(copied)])
    assert await keys(there) == [b"out"]


async def test_messages_that_are_all_the_same_and_are_taken_are_counted(
    redis: Redis, there: Redis, redis_url: str, gate: ReplyGate
) -> None:
    await push(redis, [HALFWAY + b"x" * 1_000] * 40_000)
    async with shoveling(redis_url, "in", gate.url, "out", "--copy") as process:
        await wait_for(gate.closed)
        await redis.rpop("in", 5_000)
        gate.open()
        status, err = await ended(process)
    assert status == 1
    copied = await there.llen("out")
    assert f"{40_000 - copied:,} of the messages were taken from in before they could be copied" in err


async def test_a_copy_finds_its_place_whatever_is_taken(redis: Redis, there: Redis) -> None:
    chance = random.Random(1)
    for _ in range(200):
        await redis.delete("in")
        messages = [b"%d" % chance.randrange(3) + b" %d" % (number // 2) for number in range(chance.randrange(1, 300))]
        await push(redis, messages)
        copy, copied, taken = Copy(redis, b"in", there, "out"), list[bytes](), 0
        while piece := await copy.take(len(copied) + 1, chance.randrange(1, 50)):
            copied += piece
            pop = chance.randrange(max(min(len(copied) - taken, 20), 1))
            taken += len(await redis.rpop("in", pop) or []) if pop else 0
        assert_same(copied, messages)


async def test_a_copy_never_guesses(redis: Redis, there: Redis) -> None:
    await push(redis, [b"%d" % number for number in range(100)])
    copy = Copy(redis, b"in", there, "out")
    first = await copy.take(1)
    await redis.rpop("in", len(first) + 1)
    with pytest.raises(Overtaken):
        await copy.take(len(first) + 1)


# Output


async def on_terminal(*words: str) -> tuple[Process, int]:
    """Start shovel on a terminal; return the process and the terminal's file descriptor."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "penstock", "shovel", *words),
        stderr=theirs,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200", "TERM": "xterm"},
    )
    os.close(theirs)
    return process, ours


async def test_errors_have_their_own_line_beside_the_progress_bar(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy
) -> None:
    await push(redis, messages_with_trouble())
    fault = proxy.fault(HALFWAY.decode(), forward=False)
    process, terminal = await on_terminal(redis_url, "in", proxy.url, "out")
    await wait_for(fault.met)
    while b"left," not in await asyncio.to_thread(os.read, terminal, 65536):
        pass
    fault.cut()
    shown = await asyncio.to_thread(_all_of, terminal)
    await asyncio.wait_for(process.communicate(), TIMEOUT_SECONDS)
    os.close(terminal)
    assert (process.returncode, shown.count(b"penstock: ")) == (0, 1)
    words = rb"penstock: the link is broken, retrying: the other server: [^\r\n]*\r\n"
    assert re.search(rb"(\n|\x1b\[2K)" + words, shown)


async def test_a_progress_bar_is_on_a_terminal_only(redis: Redis, there: Redis, redis_url: str, there_url: str) -> None:
    await push(redis, messages_with_trouble())
    process, terminal = await on_terminal(redis_url, "in", there_url, "out")
    shown = await asyncio.to_thread(_all_of, terminal)
    out, _ = await asyncio.wait_for(process.communicate(), TIMEOUT_SECONDS)
    os.close(terminal)
    assert out.startswith(b"moved 20,000 messages")
    assert process.returncode == 0
    plain = re.sub(rb"\x1b\[[\d;?]*[a-zA-Z]", b"", shown)
    assert re.search(rb"in to out .* \d+/20000 +[\d,]+/s [\d,]+ left, (-|\d):(--|\d\d):(--|\d\d)", plain)


def _all_of(terminal: int) -> bytes:
    found = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # EIO: no writer is left
            return found
        found += piece


async def test_credentials_come_from_a_file_or_a_variable_and_never_stand_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ps`` shows the arguments of a process as long as it runs."""
    guarded: dict[str, Any] = {"requirepass": "s3cret"}
    with EmbeddedServer(**guarded) as first, EmbeddedServer(**guarded) as second:
        urls = [server.url.replace("redis://", "redis://:s3cret@") for server in (first, second)]
        (tmp_path / "url").write_text(f"{urls[0]}\n")
        monkeypatch.setenv("THERE", urls[1])
        async with Redis.from_url(urls[0]) as here, Redis.from_url(urls[1]) as target:
            await here.lpush("old", *range(100))
            call = ("shovel", f"@{tmp_path}/url", "old", "env:THERE", "new", "--until-empty")
            async with running(*call, redis=None) as process:
                words = await asyncio.to_thread(Path(f"/proc/{process.pid}/cmdline").read_bytes)
                assert b"shovel" in words
                assert b"s3cret" not in words
                assert await ended(process) == (0, "")
            assert await target.llen("new") == 100


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("@/nothing/here", "/nothing/here cannot be read: No such file or directory"),
        ("env:NOTHING", "the variable NOTHING is empty or not set: expected a URL in it"),
    ],
)
async def test_a_url_that_is_not_where_the_call_says_is_a_wrong_call(url: str, said: str, redis_url: str) -> None:
    for words in ((url, "a", redis_url, "b"), (redis_url, "a", url, "b")):
        result = await penstock("shovel", *words)
        assert (result.status, result.out) == (2, b"")
        assert said in result.error
