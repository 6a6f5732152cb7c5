"""Errors of every command: one clear line, never a traceback."""

import asyncio
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
import typer
from redis.asyncio import Redis

from penstock.cli import app
from penstock.testing.server import EmbeddedServer
from tests.support.commandline import ROOT, penstock
from tests.support.harness import PATIENCE
from tests.support.membership import register
from tests.support.tls import certificate, encrypted, needs_openssl
from tests.support.tracked import bury, letter, policy

COMMANDS = [
    *(["status"], ["push", "in"], ["pull", "in"], ["audit", "ns"], ["stop", "ns", "1"], ["dead", "ns"]),
    *(["revive", "ns", "1"], ["bury", "ns", "1"], ["touch", "ns", "1"], ["explain", "ns", "1"], ["trace", "ns", "1"]),
]

WITHOUT_REDIS = (
    "acl",
    "archive",
    "bus",
    "chaos",
    "jobs",
    "outbox",
    "owner",
    "queue",
    "report",
    "run",
    "shovel",
    "sql",
    "test",
    "token",
)
"""Commands without the option ``--redis``: they need no server, or name two servers themselves."""


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_refused_connection_is_one_clear_line(command: list[str]) -> None:
    result = await penstock(*command, redis="redis://user:secret@127.0.0.1:1/0")
    assert (result.status, result.out) == (1, b"")
    (line,) = result.error.splitlines()
    assert line == (
        "penstock: cannot reach redis://user:***@127.0.0.1:1/0: connection refused; "
        "start a server there, or name another with --redis URL or REDIS"
    )


async def test_a_wrong_password_is_reported_without_it(tmp_path: Path) -> None:
    with EmbeddedServer(directory=tmp_path, requirepass="right") as server:
        url = server.url.replace("redis://", "redis://:secret@")
        result = await penstock("status", redis=url)
        assert result.status == 1
        assert "refuses the login" in result.error
        assert "secret" not in result.error
        missing = await penstock("status", redis=server.url)
        assert "refuses the login: Authentication required" in missing.error


@pytest.mark.parametrize("url", ["nonsense", "http://localhost", "redis://host:port/0", ""])
async def test_a_url_that_is_none_is_a_wrong_call(url: str) -> None:
    result = await penstock("status", "--redis", url)
    assert result.status == 2
    assert "is not the URL of a server" in result.error
    assert "Traceback" not in result.error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pull", "in", "--limit", "x"), "'--limit': expected a whole number, found 'x'"),
        (("archive", "export", "here", "--to", "csv", "--archive", "a"), "'--to': expected 'delta', found 'csv'"),
        (("pull", "in", "--limit", "-1"), "'--limit': expected 0 or more, found '-1'"),
    ],
)
async def test_a_wrong_option_names_what_was_expected_and_found(words: tuple[str, ...], said: str) -> None:
    result = await penstock(*words)
    assert result.status == 2
    assert f"Error: Invalid value for {said}" in result.error


@pytest.mark.parametrize("when", ["999999d", "99999999999d", "0001-01-01T00:00+14:00"])
async def test_a_time_before_the_calendar_begins_is_a_wrong_call(when: str, tmp_path: Path) -> None:
    result = await penstock("report", "--archive", tmp_path, "--all", "--since", when)
    assert (result.status, result.text) == (2, "")
    assert f"--since '{when}': expected how long ago" in result.error


WITHOUT_JSON = ("archive", "bus", "jobs", "outbox", "owner", "queue", "register", "token")


async def test_help_and_wrong_calls() -> None:
    helped = await penstock("--help")
    assert helped.status == 0
    registered = list(typer.main.get_group(app).commands)
    assert {words[0] for words in COMMANDS} < set(registered)
    for command in registered:
        assert f"  {command} " in helped.text
        text = (await penstock(command, "--help")).text
        assert ("--redis" in text) is (command not in WITHOUT_REDIS)
        assert ("--json" in text) is (command not in WITHOUT_JSON)
    for wrong in (["nosuch"], ["push"], ["status", "--nosuch"], ["pull", "in", "--limit", "-1"]):
        assert (await penstock(*wrong)).status == 2


@pytest.mark.parametrize(
    "command",
    [
        *("map", "map --live", "chaos", "plan", "apply --yes", "up", "test", "audit", "push in --file"),
        *("lint", "lint --service mpush"),
    ],
)
async def test_a_path_that_does_not_exist_is_the_same_wrong_call_everywhere(
    command: str, tmp_path: Path, redis_url: str
) -> None:
    missing = tmp_path / "nothere"
    result = await penstock(*command.split(), missing, redis=redis_url)
    assert (result.status, result.out) == (2, b"")
    assert result.error == f"penstock: {missing}: no such file or directory\n"


async def test_a_file_of_no_known_service_says_how_to_name_it(tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text("in: a\n")
    result = await penstock("lint", tmp_path / "some.yaml")
    assert result.status == 1
    assert "cannot tell which service this file is for: name it mpush-*.yaml or pass --service NAME (" in result.text


async def test_empty_states_say_what_is_empty(redis: Redis, redis_url: str) -> None:
    drawn = await penstock("map", "--live", "--once", redis=redis_url)
    assert drawn.status == 0
    assert drawn.error.startswith(f"penstock: no service has registered at {redis_url}: start one, or name another")
    await register(redis, "demo", "3")
    await redis.delete("demo:3", "demo:lists")
    await redis.set("demo:shape", json.dumps({"service": "vpush", "ends": [], "watched": [], "watches": []}))
    (row,) = (await penstock("status", "--json", redis=redis_url)).json["namespaces"]
    assert (row["services"], row["instances"]) == (["vpush"], 0)


def test_a_pull_from_nothing_says_so_on_a_terminal(redis_url: str) -> None:
    shown = on_a_terminal(80, "pull", "nothing", redis=redis_url)
    assert shown == "penstock: nothing is empty or does not exist: nothing to take (--follow waits)\n"


async def test_tables_break_no_word_on_a_terminal_of_80_columns(redis: Redis, redis_url: str) -> None:
    raw = letter("12", b"x" * 50, reason="badRequest", error="it is not what was expected", queue="demo:work:of:many")
    await policy(redis)
    await bury(redis, raw)
    seen = await asyncio.to_thread(on_a_terminal, 80, "dead", "demo", redis=redis_url)
    assert max(map(len, seen.splitlines())) <= 80
    lines = [line.rstrip() for line in seen.splitlines()]
    block = "id           12", "  reason     badRequest", "  queue      demo:work:of:many", f"  message    {'x' * 50}"
    assert [line for line in lines if line in block] == list(block), seen
    wide = await asyncio.to_thread(on_a_terminal, 200, "dead", "demo", redis=redis_url)
    assert "│ 12 │ badRequest │" in wide


def on_a_terminal(columns: int, *words: str, redis: str) -> str:
    """Return stdout and stderr of the command on a terminal of that width, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"REDIS": redis, "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    seen = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, suppress(OSError):  # EIO: the other end is closed
        while piece := terminal.read(65_536):
            seen += piece
    assert process.wait(PATIENCE) == 0
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode()).replace("\r", "")


async def test_redis_can_be_named_by_a_file_or_another_variable(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REDIS_FILE, ``--redis @FILE`` and ``--redis env:NAME``: the option wins; REDIS with REDIS_FILE is an error."""
    (tmp_path / "url").write_text(f"{redis_url}\n")
    monkeypatch.setenv("ANOTHER", redis_url)
    for words in (("--redis", f"@{tmp_path}/url"), ("--redis", "env:ANOTHER")):
        assert (await penstock("status", *words, redis="redis://127.0.0.1:1")).status == 0
    monkeypatch.setenv("REDIS_FILE", str(tmp_path / "url"))
    assert (await penstock("status")).status == 0
    assert (await penstock("status", "--redis", redis_url)).status == 0
    both = await penstock("status", redis=redis_url)
    assert both.status == 2
    assert "REDIS and REDIS_FILE are both set: unset one of them" in both.error
    (tmp_path / "url").write_text("redis://:s3cret@127.0.0.1:1")
    away = await penstock("status")
    assert away.status == 1
    assert "cannot reach redis://:***@127.0.0.1:1" in away.error


@pytest.mark.parametrize("url", ["redis://localhost:6379/x", "redis://:secret@localhost:6379/0/orders"])
@pytest.mark.parametrize("words", [["status"], ["clear", "demo", "--yes"], ["stop", "demo", "--all"]])
async def test_what_is_no_database_is_not_taken_for_database_0(words: list[str], url: str) -> None:
    result = await penstock(*words, "--redis", url)
    assert result.status == 2
    assert "(what follows the host is not the number of a database): expected redis://host:port/db" in result.error
    assert "secret" not in result.error


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:hunter2#x@h:1/0",
        "redis//u:hunter2@h",
        "redis://u:hun/ter2@h:1/0",
        "redis://h?password=hunter2&db=x",
        "redis://u:hunter2@h?ssl_chek=1",
        "rediss://u:hunter2@h?ssl_cert_reqs=hunter2",
        "redis://h?password=hun+ter2",
        "'redis://u:hunter2@h'",
    ],
)
async def test_a_password_in_a_url_with_a_mistake_is_not_printed(url: str) -> None:
    result = await penstock("status", redis=url)
    assert (result.status, "Traceback" in result.error) == (2, False)
    assert "is not the URL of a server" in result.error
    assert not [part for part in ("hun", "ter2", "hunter2") if part in result.error]


@pytest.mark.parametrize("command", ["lint", "acl", "map", "plan"])
async def test_a_url_where_a_file_is_expected_is_refused_without_its_password(command: str) -> None:
    result = await penstock(command, "redis://u:secret@localhost:6379/0/mpush-orders")
    assert result.status == 2
    assert "expected a file or a folder, found a URL: `penstock run --check URL` reads" in result.error
    assert "secret" not in result.error


async def test_the_option_or_the_variable_that_names_a_file_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_FILE", "/nowhere/secret")
    for words, blamed in ((["status"], "REDIS_FILE"), (["status", "--redis", "@/nowhere/secret"], "--redis")):
        result = await penstock(*words)
        assert result.status == 2
        assert f"Invalid value for {blamed}: /nowhere/secret cannot be read: No such file or directory" in result.error


def test_an_interrupt_while_the_command_line_is_imported_ends_it_without_a_word() -> None:
    code = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == "penstock.cli":
            os.kill(os.getpid(), signal.SIGINT)

sys.argv = ["penstock", "status"]
sys.meta_path.insert(0, Interrupting())
from penstock.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_a_command_whose_output_is_closed_does_its_work() -> None:
    call = f"exec {sys.executable} -m penstock lint compose/weather >&-"
    ended = subprocess.run(["/bin/sh", "-c", call], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


async def refuse_tls(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"-ERR no TLS here\r\n")
    writer.close()
    await writer.wait_closed()


@needs_openssl
async def test_trouble_with_tls_is_named_as_such(server: EmbeddedServer, tmp_path: Path) -> None:
    own, old = certificate(tmp_path / "own", "491231"), certificate(tmp_path / "old", "200102")
    async with encrypted(server.port, own) as port, encrypted(server.port, old) as expired:
        plain = await asyncio.start_server(refuse_tls, "127.0.0.1", 0)
        untrusted = "has a certificate that is not trusted "
        for url, reason in (
            (f"rediss://localhost:{port}/0", rf"{untrusted}\(self.signed certificate\)"),
            (f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={own}", f"{untrusted}.*is not valid for '127.0.0.1'"),
            (f"rediss://localhost:{expired}/0?ssl_ca_certs={old}", rf"{untrusted}\(certificate has expired\)"),
            (f"rediss://127.0.0.1:{plain.sockets[0].getsockname()[1]}", r"cannot speak TLS with .*\(wrong version"),
        ):
            result = await penstock("status", redis=url)
            assert result.status == 1
            assert re.search(reason, result.error)
            assert not re.search("operation not permitted|start a server", result.error)
        plain.close()
