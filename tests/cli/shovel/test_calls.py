"""penstock shovel: calls, errors, passwords, and what is shown."""

import asyncio
import os
import pty
import re
import sys
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.base.urls import server_of
from penstock.testing.server import EmbeddedServer
from tests.cli.given import left, push
from tests.cli.shovel.moving import (
    HALFWAY,
    keys,
    kill_once,
    messages_with_trouble,
    shovel,
    wait_for,
)
from tests.reliability.proxy import Proxy
from tests.support.commandline import ended, penstock, running
from tests.support.harness import PATIENCE

pytestmark = pytest.mark.slow


async def test_json_output(redis: Redis, there: Redis, redis_url: str, there_url: str) -> None:
    await push(redis, [b"one", b"two", b"three"])
    output = (await shovel(redis_url, "in", there_url, "out", "--json")).json
    assert output.pop("seconds") > 0
    assert output.pop("rate") > 0
    assert output == {"from": "in", "to": "out", "copy": False, "interrupted": False, "messages": 3, "bytes": 11}


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
    assert len({server_of(url) for url in same}) == 1
    others = ["redis://h/1", "redis://h?db=1", "redis://h:6380", "redis://other", "unix:///h", "unix:///h?db=1"]
    several = ["redis+sentinel://u:p@a:1,b:2/main", "redis+sentinel://a:1,b:2/other", "redis+sentinel://a:1/main"]
    assert len({server_of(url) for url in [same[0], *others, *several]}) == 1 + len(others) - 1 + len(several)
    assert server_of(several[0]) == server_of("redis+sentinel://a:1,b:2/main")


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
    await asyncio.wait_for(process.communicate(), PATIENCE)
    os.close(terminal)
    assert (process.returncode, shown.count(b"penstock: ")) == (0, 1)
    words = rb"penstock: the link is broken, retrying: the other server: [^\r\n]*\r\n"
    assert re.search(rb"(\n|\x1b\[2K)" + words, shown)


async def test_a_progress_bar_is_on_a_terminal_only(redis: Redis, there: Redis, redis_url: str, there_url: str) -> None:
    await push(redis, messages_with_trouble())
    process, terminal = await on_terminal(redis_url, "in", there_url, "out")
    shown = await asyncio.to_thread(_all_of, terminal)
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
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
