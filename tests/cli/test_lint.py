"""penstock lint: props files of any installed service, found by its entry point."""

import asyncio
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import Problem, SettingsError
from penstock.base.installed import services
from tests.support.commandline import ROOT, penstock

GOOD = "redisNamespace: demo\nin: work\npending: work:pending\nout: [a, b]\n"


class Fan:
    """Settings of a foreign service that refuse every file."""

    service = "fan"

    @classmethod
    def load(cls, props_file: Path, environ: dict[str, str]) -> object:
        assert environ == {}, "a file is judged by itself"
        raise SettingsError([Problem("is never right", str(props_file), 7, cls.service)])

    @classmethod
    def secret_variables(cls) -> dict[str, str]:
        return {}


class StrictFan(Fan):
    service = "fan-strict"


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install two foreign services, one by another name, and one that cannot be loaded."""
    entries = [
        EntryPoint("fan", "tests.cli.test_lint:Fan", "penstock.services"),
        EntryPoint("fan-strict", "tests.cli.test_lint:StrictFan", "penstock.services"),
        EntryPoint("misnamed", "tests.cli.test_lint:Fan", "penstock.services"),
        EntryPoint("broken", "no.such.module:Settings", "penstock.services"),
    ]
    monkeypatch.setattr("penstock.base.installed.entry_points", lambda group: entries)
    services.cache_clear()
    yield
    services.cache_clear()


async def lint_text(file: Path, text: str, *words: str) -> tuple[int, list[str]]:
    await asyncio.to_thread(file.write_text, text)
    result = await penstock("lint", *words, file)
    assert result.error == ""
    return result.status, result.text.replace(f"{file}", "FILE").splitlines()


async def test_a_good_file_is_fine(tmp_path: Path) -> None:
    assert await lint_text(tmp_path / "mpush.yaml", GOOD) == (0, ["FILE: OK"])


async def test_the_files_of_our_compositions_are_fine() -> None:
    files = [*(ROOT / "compose").glob("*/mpush*.yaml")]
    assert files
    result = await penstock("lint", *files)
    assert (result.status, result.error) == (0, "")


async def test_every_problem_is_named_with_file_line_and_property(tmp_path: Path) -> None:
    text = "redis: http://here\nin: work\npending: work\nout: [a, a]\npopTimout: 5\nserviceExpire: 10\n"
    status, lines = await lint_text(tmp_path / "mpush.yaml", text)
    assert status == 1
    assert {line.split(": ")[0] + ": " + line.split(": ")[1] for line in lines} == {
        "FILE:1: redis", "FILE:3: pending", "FILE:4: out", "FILE:5: popTimout", "FILE:6: serviceExpire",
    }  # fmt: skip
    assert any("did you mean popTimeout?" in line for line in lines)


async def test_a_property_that_is_missing_is_named(tmp_path: Path) -> None:
    status, lines = await lint_text(tmp_path / "mpush.yaml", "in: work\npending: p\n")
    assert status == 1
    assert len(lines) == 1
    assert "out" in lines[0]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("mpush.json", '{\n"in": work}', 2),
        ("mpush-redis.js", "module.exports = {\n\nin: require('x')}", 3),
        ("mpush.yaml", "in: work\nout: [a", 2),
        ("mpush.prod.toml", 'in = "work"\nout = ', 2),
        ("mpush.json5", "{\nin: 'work',\nin: 'other', pending: 'p', out: ['a']}", 3),
    ],
)
async def test_an_invalid_file_is_reported_with_its_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    status, lines = await lint_text(tmp_path / name, text)
    assert status == 1
    assert lines[0].startswith(f"FILE:{line}: ")


async def test_the_environment_is_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPUSH_POP_TIMEOUT", "10")
    status, lines = await lint_text(tmp_path / "mpush.yaml", GOOD + "popTimeout: 3\n")
    assert status == 1
    assert lines[0].startswith("FILE:5: popTimeout: ")


async def test_all_files_are_linted_and_one_finding_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "mpush.good.yaml").write_text(GOOD)
    (tmp_path / "mpush.bad.yaml").write_text(GOOD + "colour: red\n")
    result = await penstock("lint", tmp_path / "mpush.good.yaml", tmp_path / "mpush.bad.yaml")
    assert result.status == 1
    assert result.text.splitlines() == [
        f"{tmp_path}/mpush.good.yaml: OK",
        f"{tmp_path}/mpush.bad.yaml:5: colour: unknown property",
    ]


async def test_json_lists_the_problems_by_file(tmp_path: Path) -> None:
    file = tmp_path / "mpush.yaml"
    file.write_text(GOOD + "colour: red\n")
    result = await penstock("lint", file, "--json")
    assert result.status == 1
    problem: dict[str, Any] = {"message": "unknown property", "file": str(file), "line": 5, "property": "colour"}
    assert result.json == {"files": [{"file": str(file), "problems": [problem]}]}


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("fan.yaml", "fan"),
        ("fan-redis.js", "fan"),
        ("fan.prod.json", "fan"),
        ("fan-strict.yaml", "fan-strict"),
        ("fan-stricter.yaml", "fan"),
    ],
)
async def test_the_longest_name_that_a_file_begins_with_is_its_service(tmp_path: Path, name: str, service: str) -> None:
    assert await lint_text(tmp_path / name, "") == (1, [f"FILE:7: {service}: is never right"])


@pytest.mark.usefixtures("foreign")
@pytest.mark.parametrize("name", ["fan2.yaml", "other.yaml", "props-fan.yaml"])
async def test_a_name_that_begins_with_no_service_is_a_finding_that_says_what_to_do(tmp_path: Path, name: str) -> None:
    status, (line,) = await lint_text(tmp_path / name, "")
    assert status == 1
    assert "name it mpush-*.yaml or pass --service NAME (broken, fan, fan-strict, misnamed)" in line


@pytest.mark.usefixtures("foreign")
async def test_the_service_may_be_named(tmp_path: Path) -> None:
    assert await lint_text(tmp_path / "any", "", "--service", "fan") == (1, ["FILE:7: fan: is never right"])


@pytest.mark.usefixtures("foreign")
async def test_a_service_that_cannot_be_loaded_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "props.yaml").touch()
    result = await penstock("lint", "--service", "broken", tmp_path / "props.yaml")
    assert (result.status, result.out) == (1, b"")
    assert "the service broken is not installed correctly: No module named 'no'" in result.error


@pytest.mark.usefixtures("foreign")
async def test_a_service_has_one_name(tmp_path: Path) -> None:
    (tmp_path / "props.yaml").touch()
    result = await penstock("lint", "--service", "misnamed", tmp_path / "props.yaml")
    assert (result.status, result.out) == (1, b"")
    assert "the entry point misnamed names the settings of fan: expected one name" in result.error


async def test_an_unknown_service_is_a_usage_error(tmp_path: Path) -> None:
    result = await penstock("lint", "--service", "nosuch", tmp_path / "props.yaml")
    assert result.status == 2
    assert "unknown service 'nosuch'" in result.error


async def test_files_are_needed() -> None:
    assert (await penstock("lint")).status == 2


async def test_unwise_settings_are_warnings_and_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warn of TLS without verification, and of REDIS overriding the server of a file or composition."""
    monkeypatch.setenv("REDIS", "redis://other/0")
    file = tmp_path / "mpush.yaml"
    file.write_text(GOOD + "redis: rediss://:s3cret@h/1?ssl_check_hostname=no\ndone: d\n")
    (tmp_path / "Procfile").write_text(f"fan: python -m services.mpush --props {file}\n")
    (tmp_path / "composition.yaml").write_text("external: {reads: [a, b], writes: [work]}\n")
    for path in (file, tmp_path):
        result = await penstock("lint", path, redis="redis://other/0")
        assert result.status == 0
        first, *warnings = result.text.splitlines()
        assert first.startswith(f"{path}: OK")
        assert [line.startswith("warning: ") for line in warnings] == [True] * 3
        assert (
            f"environment REDIS overrides {file}:5: redis: redis://other/0 in place of rediss://:***@h/1" in result.text
        )
        assert f"{file}:5: redis: ssl_check_hostname=no accepts" in result.text
        listed = (await penstock("lint", path, "--json", redis="redis://other/0")).json
        (entry,) = listed["compositions" if path == tmp_path else "files"]
        assert [f"warning: {words}" for words in entry["warnings"]] == warnings
    file.write_text(GOOD + "done: d\n")
    assert (await penstock("lint", file)).text == f"{file}: OK\nwarning: {file}:5: done has no effect in mpush\n"
