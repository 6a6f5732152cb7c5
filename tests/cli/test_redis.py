"""penstock redis: what redis-cli prints, byte for byte."""

import asyncio
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from penstock.inspect.redis_replies import Failure, Reply, Status, format_raw, format_typed, quoted, send_command
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import penstock
from tests.support.harness import PATIENCE, eventually

NESTED = "return {1,{2,{},'x',{ok='FINE'},{err='ERR bad'}},false,'z',{{'a','b'},'c'}}"
LONG = "local t={} for i=1,110 do t[i]={i,{i,'x'}} end return t"

COMMANDS = [
    ["ping"],
    ["PING", "hi"],
    ["set", "key", 'a "b" \\ é'],
    ["get", "key"],
    ["get", "nothing"],
    ["get", "bytes"],
    ["lpush", "list", "one"],
    ["lrange", "list", "0", "-1"],
    ["lrange", "nothing", "0", "-1"],
    ["lrange", "long", "0", "-1"],
    ["hgetall", "hash"],
    ["hget", "hash", "absent"],
    ["type", "hash"],
    ["lpush", "hash", "x"],
    ["nosuch", "with", "arguments"],
    ["eval", NESTED, "0"],
    ["eval", LONG, "0"],
    ["eval", "return {{{}},{false},{{{'deep'}}}}", "0"],
    ["eval", "return redis.error_reply('WRONGTYPE mine')", "0"],
    ["xadd", "stream", "1-1", "field", "value"],
    ["xrange", "stream", "-", "+"],
    ["info", "replication"],
    ["INFO", "cluster"],
    ["memory", "doctor"],
    ["latency", "doctor"],
    ["cluster", "info"],
    ["object", "help"],
    ["echo", ""],
    ["echo", "line\nbreak\ttab\x07\x08\r"],
    ["config", "get", "maxmemory-policy"],
    ["incr", "counter"],
    ["exists", "key", "list"],
    ["ttl", "key"],
    ["getrange", "key", "0", "0"],
    ["time", "too", "many"],
]


@pytest.fixture
async def filled(redis: Redis, server: EmbeddedServer) -> int:
    """Fill the server with a key of each type; return its port."""
    await redis.set("bytes", bytes(range(256)))
    await redis.rpush("long", *(f"element {number}" for number in range(12)))
    await redis.hset("hash", mapping={b"na\xefve": b"\x00\x01", b"n": b"-1"})
    return server.port


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="no redis-cli on this machine")
@pytest.mark.parametrize("mode", [[], ["--no-raw"], ["--raw"]], ids=["pipe", "no-raw", "raw"])
async def test_every_reply_is_printed_as_redis_cli_prints_it(filled: int, redis: Redis, mode: list[str]) -> None:
    for command in COMMANDS:
        await redis.delete("list", "counter", "stream")
        words = ["redis-cli", "-p", str(filled), *mode, *command]
        theirs = await asyncio.to_thread(
            subprocess.run, words, capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE
        )
        await redis.delete("list", "counter", "stream")
        reply = await send_command(f"redis://127.0.0.1:{filled}/0", encoded := [word.encode() for word in command])
        ours = (format_typed if mode == ["--no-raw"] else format_raw)(reply, encoded)
        assert ours == theirs.stdout, command


async def test_the_command_prints_bare_replies_into_a_pipe(filled: int) -> None:
    result = await penstock("redis", "-p", str(filled), "lrange", "long", "0", "-1")
    assert (result.status, result.text) == (0, "".join(f"element {number}\n" for number in range(12)))
    assert (await penstock("redis", "-p", str(filled), "get", "bytes")).out == bytes(range(256)) + b"\n"


async def test_the_command_prints_types_where_asked_to(filled: int) -> None:
    result = await penstock("redis", "-p", str(filled), "--no-raw", "lrange", "long", "0", "1")
    assert result.text == '1) "element 0"\n2) "element 1"\n'


async def test_the_command_prints_types_on_a_terminal(filled: int) -> None:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "penstock", "redis", "-p", str(filled), "hget", "hash", "n", stdout=theirs
    )
    os.close(theirs)
    assert await asyncio.wait_for(process.wait(), PATIENCE) == 0
    assert os.read(ours, 100) == b'"-1"\r\n'
    os.close(ours)


async def test_the_options_are_those_of_redis_cli(filled: int) -> None:
    there = ["-h", "127.0.0.1", "-p", str(filled)]
    assert (await penstock("redis", *there, "-n", "3", "set", "key", "three")).text == "OK\n"
    assert (await penstock("redis", *there, "-n", "3", "get", "key")).text == "three\n"
    assert (await penstock("redis", "-u", f"redis://127.0.0.1:{filled}/3", "get", "key")).text == "three\n"
    assert (await penstock("redis", "-n", "3", "get", "key", redis=f"redis://127.0.0.1:{filled}")).text == "three\n"
    assert (await penstock("redis", "-p", str(filled), "get", "key")).text == "\n"


async def test_words_that_look_like_options_belong_to_the_command(filled: int) -> None:
    result = await penstock("redis", "-p", str(filled), "echo", "--json")
    assert result.text == "--json\n"
    result = await penstock("redis", "-p", str(filled), "echo", "-p")
    assert result.text == "-p\n"


async def test_bytes_of_the_command_line_reach_the_server(filled: int, redis: Redis) -> None:
    await penstock("redis", "-p", str(filled), "set", b"k\xff", b"\xfe\x01 \xc3\xa9")
    assert await redis.get(b"k\xff") == b"\xfe\x01 \xc3\xa9"


async def test_an_error_reply_is_printed_and_is_a_failure(filled: int) -> None:
    result = await penstock("redis", "-p", str(filled), "lpush", "hash", "x")
    assert result.status == 1
    assert result.text.startswith("WRONGTYPE Operation against a key")


async def test_json_keeps_the_types(filled: int) -> None:
    result = await penstock("redis", "-p", str(filled), "--json", "eval", NESTED, "0")
    assert result.json == [1, [2, [], "x", "FINE", {"error": "ERR bad"}], None, "z", [["a", "b"], "c"]]
    failed = await penstock("redis", "-p", str(filled), "--json", "nosuch")
    assert failed.status == 1
    assert failed.json["error"].startswith("ERR unknown command")


async def test_a_command_is_needed(filled: int) -> None:
    assert (await penstock("redis", "-p", str(filled))).status == 2


async def test_a_blocking_command_waits(filled: int, redis: Redis) -> None:
    asking = asyncio.create_task(send_command(f"redis://127.0.0.1:{filled}/0", [b"BLPOP", b"later", b"0"]))
    await eventually(lambda: waiting(redis))
    await redis.lpush("later", "x")
    assert await asyncio.wait_for(asking, PATIENCE) == [b"later", b"x"]


async def waiting(redis: Redis) -> bool:
    return bool((await redis.info("clients"))["blocked_clients"])


async def test_shutdown_is_no_error() -> None:
    with EmbeddedServer() as server:
        assert await send_command(server.url, [b"SHUTDOWN", b"NOSAVE"]) is None


@pytest.mark.parametrize(
    ("reply", "printed"),
    [
        (Status(b"OK"), b"OK\n"),
        (b"OK", b'"OK"\n'),
        (0, b"(integer) 0\n"),
        (None, b"(nil)\n"),
        ([], b"(empty array)\n"),
        (Failure("ERR no"), b"(error) ERR no\n"),
        ([[None], b"x"], b'1) 1) (nil)\n2) "x"\n'),
    ],
)
def test_each_type_has_its_form(reply: Reply, printed: bytes) -> None:
    assert format_typed(reply) == printed


def test_what_is_not_printable_is_escaped() -> None:
    assert quoted(b'\x00"\\\n\r\t\a\b\x7f\xff~ ') == r'"\x00\"\\\n\r\t\a\b\x7f\xff~ "'


async def test_a_socket_is_named_by_its_url_and_n_is_its_database(tmp_path: Path) -> None:
    with EmbeddedServer(unixsocket=str(tmp_path / "s")):
        url = f"unix://{tmp_path}/s"
        assert (await penstock("redis", "ping", redis=url)).text == "PONG\n"
        assert (await penstock("redis", "-n", "3", "set", "key", "three", redis=f"{url}?db=1")).text == "OK\n"
        assert (await penstock("redis", "get", "key", redis=f"{url}?db=3")).text == "three\n"
