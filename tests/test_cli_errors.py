"""What every command says when it cannot go on: one clear line, never a traceback."""

import time
from pathlib import Path

import pytest
import typer

from penstock.cli import app
from penstock.embedded import EmbeddedServer
from tests.commandline import penstock

COMMANDS = [
    *(["status"], ["push", "in"], ["pull", "in"], ["audit", "ns"], ["stop", "ns", "1"], ["dead", "ns"]),
    *(["revive", "ns", "1"], ["bury", "ns", "1"], ["touch", "ns", "1"], ["explain", "ns", "1"], ["trace", "ns", "1"]),
]

WITHOUT_REDIS = ("chaos", "report", "shovel", "test")
"""Commands that ask no server of ours, or are told of two."""


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_refused_connection_is_one_clear_line(command: list[str]) -> None:
    started = time.monotonic()
    result = await penstock(*command, redis="redis://user:secret@127.0.0.1:1/0")
    assert (result.status, result.out) == (1, b"")
    (line,) = result.error.splitlines()
    assert line == (
        "penstock: cannot reach redis://user:***@127.0.0.1:1/0: connection refused; "
        "start a server there, or name another with --redis URL or REDIS"
    )
    assert time.monotonic() - started < 5


async def test_a_wrong_password_is_told_without_it(tmp_path: Path) -> None:
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


async def test_help_and_wrong_calls() -> None:
    helped = await penstock("--help")
    assert helped.status == 0
    registered = list(typer.main.get_group(app).commands)
    assert {words[0] for words in COMMANDS} < set(registered)
    for command in registered:
        assert f"  {command} " in helped.text
        told = (await penstock(command, "--help")).text
        assert ("--redis" in told) is (command not in WITHOUT_REDIS)
        assert "--json" in told
    for wrong in (["nosuch"], ["push"], ["status", "--nosuch"], ["pull", "in", "--limit", "-1"]):
        assert (await penstock(*wrong)).status == 2
