"""A composition read from its files: processes, settings, programs, and the line of each name."""

import shutil
import subprocess
from pathlib import Path

import pytest

from common.settings.base import ServiceSettings
from penstock.base.installed import services
from penstock.base.shape import Place
from penstock.base.urls import server_of
from penstock.composition.files import read
from penstock.composition.lint.rules import lint
from penstock.composition.service import PartSettingsType, settings_of
from tests.support.commandline import ROOT
from tests.support.lint_cases import SHOP, compose

CHECKED_BY_MYPY: PartSettingsType = ServiceSettings
CONTAINERS = sorted(file.parent for file in ROOT.glob("compose/*/compose.yaml"))


def test_the_settings_of_every_service_have_what_a_composition_needs() -> None:
    for name in services():
        settings_type = settings_of(name)
        assert isinstance(settings_type, type)
        assert issubclass(settings_type, ServiceSettings)


@pytest.mark.parametrize("directory", CONTAINERS, ids=lambda directory: directory.name)
def test_containers_are_read_where_there_is_no_procfile(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path / "copy")
    (tmp_path / "copy" / "Procfile").unlink()
    found = read(tmp_path / "copy")
    procfile = read(directory)
    assert {part.name for part in found.parts} == {part.name for part in procfile.parts}
    assert "redis:6379/0" in {end.place.server for _, end in found.ends("reads")}
    assert [finding for finding in lint(found) if not finding.note] == []


@pytest.mark.parametrize("name", ["weather", "tracked", "sites"])
def test_redis_names_the_server_of_all_parts(name: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "compose" / name, tmp_path / "copy")
    for _ in range(2):  # for processes, then for containers
        found = read(tmp_path / "copy", {"REDIS": "redis://elsewhere:7000/3"})
        assert {end.place.server for _, end in found.ends("reads", "keeps")} == {"elsewhere:7000/3"}
        (tmp_path / "copy" / "Procfile").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("mpush.yaml", "in: a\npending: p\nout:\n  - one\n  - a:one\n  - two\n", 6),
        ("mpush.js", "module.exports = {\n  in: 'a', pending: 'p',\n  out: [\n    'one',\n    'two' ]\n};\n", 5),
        ("mpush.json", '{"in": "a", "pending": "p",\n "out": ["one",\n "two"]}', 3),
        ("mpush.toml", 'in = "a"\npending = "p"\nout = ["one",\n# nothing\n"two"]\n', 5),
        ("mpush.yaml", 'in: a\npending: p\nout: ["\\x74wo", one]\n', 3),
    ],
)
def test_each_name_of_a_list_has_its_own_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    (tmp_path / name).write_text(text)
    found = read(tmp_path)
    assert found.problems == ()
    (end,) = (end for _, end in found.ends("writes") if end.key == "two")
    assert end.where == (f"{tmp_path}/{name}", line)


def test_what_a_program_does_is_said_line_by_line(tmp_path: Path) -> None:
    compose(tmp_path, {"composition.yaml": ("[shop:track:done]", "\n      - shop:track:done\n      - shop:kept")})
    (worker,) = (part for part in read(tmp_path).parts if part.name == "worker")
    assert [(end.key, end.where[1]) for end in worker.ends] == [
        ("shop:work", 6),
        ("shop:track:done", 8),
        ("shop:kept", 9),
    ]


def test_sources_and_sinks_are_where_messages_come_in_and_go_out(tmp_path: Path) -> None:
    found = read(compose(tmp_path))
    assert [end.place for end in found.sources()] == [Place("shop:in", "localhost:6379/0")]
    assert [end.place for end in found.sinks()] == [Place("archive:in", "elsewhere:6379/0")]


def test_a_props_file_that_no_process_reads_is_a_part_that_is_not_started(tmp_path: Path) -> None:
    compose(tmp_path)
    (tmp_path / "Procfile").write_text(SHOP["Procfile"].replace("send: ", "# send: "))
    (send,) = (part for part in read(tmp_path).parts if part.service == "vpush")
    assert (send.name, send.command) == ("vpush", None)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("redis://localhost", "localhost:6379/0"),
        ("redis://127.0.0.1:6379", "localhost:6379/0"),
        ("redis://user:secret@host:7000/2", "host:7000/2"),
        ("redis://[::ffff:127.0.0.1]:6379?db=1", "localhost:6379/1"),
        ("redis://[2001:DB8::1]:7000", "[2001:db8::1]:7000/0"),
        ("unix:///tmp/redis.sock", "/tmp/redis.sock/0"),
        ("unix:///tmp/redis.sock?db=2", "/tmp/redis.sock/2"),
        ("redis+sentinel://b:1,a/main?db=1", "a:26379,b:1/main/1"),
        ("redis+cluster://b:1,a", "a:6379,b:1/0"),
    ],
)
def test_urls_of_one_server_are_the_same(url: str, server: str) -> None:
    assert server_of(url) == server


def test_variables_of_a_process_are_those_that_a_shell_would_give_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP", "the shop")
    given = """A=$SHOP B="$SHOP's" C='$SHOP' D=x'$SHOP'"$SHOP" """
    (tmp_path / "Procfile").write_text(f"worker: {given} python worker.py\n")
    (part,) = read(tmp_path).parts
    shell = subprocess.run(["sh", "-c", f"{given} env"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert part.environ == {"A": "the shop", "B": "the shop's", "C": "$SHOP", "D": "x$SHOPthe shop"}
    assert {f"{name}={value}" for name, value in part.environ.items()} <= set(shell)
