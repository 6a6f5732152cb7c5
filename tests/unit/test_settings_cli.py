"""The command line of a service."""

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from common.settings.cli import parse
from penstock import __version__
from services.mpush.settings import Settings
from tests.support.given import ENVIRONMENT, ORIGINAL

Output = pytest.CaptureFixture[str]


def run(*argv: str, **environ: str) -> Settings:
    return parse(Settings, argv, environ)


def status(*argv: str, **environ: str) -> int | str | None:
    with pytest.raises(SystemExit) as end:
        run(*argv, **environ)
    return end.value.code


@pytest.fixture
def original(tmp_path: Path) -> str:
    file = tmp_path / "props.js"
    file.write_text(ORIGINAL.replace("redis://localhost", "redis://user:s3cr3t@localhost"))
    return str(file)


def test_the_props_file_is_named_by_an_option_an_argument_or_the_environment(original: str) -> None:
    assert run("--props", original).in_ == "demo:mpush:in"
    assert run(original).in_ == "demo:mpush:in"
    assert run(PROPS_FILE=original).in_ == "demo:mpush:in"
    assert run(propsFile=original).in_ == "demo:mpush:in"
    assert run("--props", original, "none.js", PROPS_FILE="none.yaml").in_ == "demo:mpush:in"
    assert run(**ENVIRONMENT).in_ == "in"


def test_check_prints_a_table_of_values_and_where_they_come_from(original: str, capsys: Output) -> None:
    assert status("--check", original, MPUSH_POP_TIMEOUT="7") == 0
    table, errors = capsys.readouterr()
    rows = dict(line.split(maxsplit=1) for line in table.splitlines() if not line.startswith("warning"))
    assert rows["popTimeout"].split(maxsplit=1) == ["7", "environment MPUSH_POP_TIMEOUT"]
    assert rows["redis"].split() == ["redis://user:***@localhost:6379/1", f"{original}:3"]
    assert rows["batch"].split() == ["2000", "default"]
    assert "done has no effect in mpush" in table
    assert "s3cr3t" not in table
    assert errors == ""


@pytest.mark.parametrize("words", [["--check"], ["--check", "--json"]])
def test_a_reader_that_leaves_early_brings_no_traceback(words: list[str], original: str) -> None:
    code = "from services.mpush.settings import Settings; from common.settings.cli import parse; import sys, os; "
    code += "input(); parse(Settings, sys.argv[1:], os.environ)"
    command = [sys.executable, "-c", code, *words, original]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout
        process.stdout.close()
        process.stdout = None
        _, errors = process.communicate("now\n", timeout=60)
    assert (process.returncode, errors) == (141, "")


def test_check_prints_json_for_a_program(original: str, capsys: Output) -> None:
    assert status("--check", "--json", original) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["settings"]["in"] == {"value": "demo:mpush:in", "from": f"{original}:6"}
    assert len(said["warnings"]) == 4
    assert status("--check", "--json", **ENVIRONMENT, MPUSH_BATCH="0") == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["property"] == "MPUSH_BATCH"


def test_all_problems_go_to_stderr_with_status_2(capsys: Output) -> None:
    assert status(REDIS="redis://u:s3cr3t@h:port", MPUSH_POP_TIMEOUT="4") == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert [line.partition(":")[0] for line in errors.splitlines()] == [
        "MPUSH_POP_TIMEOUT",
        "REDIS",
        "in",
        "pending",
        "out",
    ]
    assert "s3cr3t" not in errors


def test_an_unknown_option_is_refused_with_status_2(capsys: Output) -> None:
    assert status("--prop", "x") == 2
    assert "--prop" in capsys.readouterr().err


def test_help_lists_every_setting_with_its_names_unit_and_default(capsys: Output) -> None:
    assert status("--help") == 0
    said = capsys.readouterr().out
    assert "  popTimeout (MPUSH_POP_TIMEOUT): seconds 5..30, default 10\n" in said
    assert "X_FILE in place of a variable X" in said
    assert "  redis (MPUSH_REDIS or REDIS): URL, required\n" in said
    assert "  redisNamespace or serviceNamespace (MPUSH_REDIS_NAMESPACE or MPUSH_SERVICE_NAMESPACE): name," in said
    for name, field in Settings.model_fields.items():
        assert Settings.names().variables_of(name)[0] in said
        assert field.description
        assert f"      {field.description}\n" in said + "\n"
        assert "\n" not in field.description


def test_version_is_printed(capsys: Output) -> None:
    assert status("--version") == 0
    assert capsys.readouterr().out == f"mpush {__version__}\n"


def test_names_that_would_spoil_a_table_or_a_terminal_are_quoted(capsys: Output) -> None:
    assert status("--check", **{**ENVIRONMENT, "MPUSH_IN": "a\nb\x1b[2J"}) == 0
    assert 'in                 "a\\nb\\u001b[2J"' in capsys.readouterr().out


def test_a_service_loads_no_parser_that_it_does_not_need() -> None:
    code = """
import sys
from common.settings.cli import parse
from services.mpush.settings import Settings
parse(Settings, [], {"REDIS": "redis://h", "MPUSH_IN": "a", "MPUSH_PENDING": "b", "MPUSH_OUT": "c"})
print([name for name in ("yaml", "pyjson5", "tomllib", "typer", "rich") if name in sys.modules])
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_check_warns_of_a_server_that_the_environment_overrides_and_of_unverified_tls(
    original: str, capsys: Output
) -> None:
    assert status("--check", original, REDIS="rediss://:s3cr3t@h?ssl_cert_reqs=none") == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if "redis:" in line and "warning" in line]
    assert len(warnings) == 2
    assert "rediss://:***@h?ssl_cert_reqs=none in place of redis://user:***@localhost:6379/1" in warnings[0]
    assert "accepts any certificate" in warnings[1]


@pytest.mark.parametrize("words", [("--check",), ()])
def test_a_file_that_a_url_names_is_needed_on_this_machine(words: tuple[str, ...], capsys: Output) -> None:
    assert status(*words, **{**ENVIRONMENT, "REDIS": "rediss://:s3cr3t@h?ssl_ca_certs=/no/such/file"}) == 2
    said = capsys.readouterr().err
    assert said == "REDIS: ssl_ca_certs=/no/such/file cannot be read: No such file or directory\n"
