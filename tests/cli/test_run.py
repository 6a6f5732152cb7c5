"""``penstock run``, ``--version`` and shell completion, as in an installation."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from penstock import __version__
from penstock.base import launch
from penstock.base.errors import PenstockError
from penstock.composition.files import read
from tests.support.commandline import ROOT, penstock
from tests.support.harness import until

PROPS = "in: in\npending: pending\nout: [a]\nredisNamespace: demo\n"
TRAP = "raise SystemExit('a folder of somebody else was imported')\n"


@contextmanager
def started(directory: Path, *words: object, **environ: str) -> Iterator["subprocess.Popen[str]"]:
    """Run ``penstock WORDS`` in ``directory``, with nothing of this process's environment but PATH."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *map(str, words)],
        cwd=directory,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ended(directory: Path, *words: object, **environ: str) -> tuple[int, str, str]:
    with started(directory, *words, **environ) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def trapped(directory: Path) -> None:
    """Create folders with the names of our packages whose import ends the process."""
    for name in ("services", "common", "services/mpush"):
        (directory / name).mkdir()
        (directory / name / "__init__.py").write_text(TRAP)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text", "more"),
    [
        ("mpush-orders.yaml", PROPS, []),
        ("orders.yaml", f"{PROPS}service: mpush\n", []),
        ("orders.yaml", PROPS, ["--service", "mpush"]),
    ],
)
def test_a_service_is_run_by_its_props_file_whatever_the_folder_holds(
    tmp_path: Path, redis: "Redis", redis_url: str, file: str, text: str, more: list[str]
) -> None:
    """The service replaces the command in the same process, ends with 0, and has the command line that health needs."""
    (tmp_path / file).write_text(text)
    trapped(tmp_path)
    with Redis.from_url(redis_url) as client, started(tmp_path, "run", *more, file, REDIS=redis_url) as process:
        client.lpush("in", "one")
        until(lambda: client.llen("a") or process.poll() is not None)
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert words[1:4] == [b"-P", b"-m", b"services.mpush"]
        process.terminate()
        _, said = process.communicate(timeout=60)
        assert (process.returncode, client.lrange("a", 0, -1)) == (0, [b"one"])
    assert '"ended"' in said


def test_sigterm_that_comes_before_the_service_runs_is_obeyed_with_status_0(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "mpush.yaml").write_text(PROPS)
    with started(tmp_path, "run", "mpush.yaml", REDIS=redis_url) as process:
        blocked = 1 << (signal.SIGTERM - 1)

        def waits() -> bool:
            status = Path(f"/proc/{process.pid}/status").read_text()
            return bool(int(status.partition("SigBlk:")[2].split()[0], 16) & blocked)

        until(waits)
        assert b"services.mpush" not in Path(f"/proc/{process.pid}/cmdline").read_bytes(), "it is the command line yet"
        process.terminate()
        assert process.wait(60) == 0


def test_a_service_is_run_by_the_environment_alone(tmp_path: Path) -> None:
    environ = {"REDIS": "redis://h", "MPUSH_IN": "in", "MPUSH_PENDING": "pending", "MPUSH_OUT": "a"}
    code, out, err = ended(tmp_path, "run", "--service", "mpush", "--check", **environ)
    assert (code, err, "environment MPUSH_OUT" in out) == (0, "", True)


async def test_without_a_file_a_service_must_be_named() -> None:
    result = await penstock("run", redis=None)
    assert (result.status, result.error.splitlines()[-1]) == (
        2, "penstock: expected FILE, or --service NAME with its settings in the environment",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "text", "words", "status", "said"),
    [
        ("mpush.yaml", PROPS, ["--check"], 0, ""),
        ("mpush.yaml", PROPS + "popTimeout: 1\n", [], 2, "mpush.yaml:5: popTimeout: expected a whole number"),
        ("mpush.yaml", PROPS + "service: vpush\n", [], 2, 'service: this file is for "vpush", and mpush reads it'),
        ("orders.yaml", PROPS, [], 2, "orders.yaml: cannot tell which service this file is for: name it mpush-*.yaml"),
        ("orders.yaml", PROPS + "service: nix\n", [], 2, 'orders.yaml:5: service: no service is called "nix"'),
        ("orders.yaml", PROPS, ["--service", "nix"], 2, "no service is called 'nix': expected one of"),
        ("orders.yaml", None, [], 2, "orders.yaml: cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_run_says_so_in_one_line(
    tmp_path: Path, file: str, text: str | None, words: list[str], status: int, said: str
) -> None:
    if text is not None:
        (tmp_path / file).write_text(text)
    code, out, err = ended(tmp_path, "run", file, *words, REDIS="redis://h")
    assert (code, said in err, err.count("\n")) == (status, True, int(bool(said)))
    assert ("popTimeout" in out) == (status == 0)


def test_lint_reads_the_property_service(tmp_path: Path) -> None:
    (tmp_path / "orders.yaml").write_text(PROPS + "service: mpush\n")
    code, out, err = ended(tmp_path, "lint", "orders.yaml")
    assert (code, out, err) == (0, "orders.yaml: OK\n", "")


def test_a_service_of_another_distribution_is_found_by_its_entry_point(tmp_path: Path) -> None:
    """The call has the exit status of the service, which gets the usual arguments."""
    site, work = tmp_path / "site", tmp_path / "work"
    (site / "acme_fan").mkdir(parents=True)
    (site / "acme-1.dist-info").mkdir()
    (site / "acme-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (site / "acme-1.dist-info" / "entry_points.txt").write_text(
        "[penstock.services]\nfan = acme_fan.settings:Settings\n"
    )
    (site / "acme_fan" / "__init__.py").touch()
    (site / "acme_fan" / "__main__.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    work.mkdir()
    path = os.pathsep.join([str(ROOT), str(site)])
    assert ended(work, "run", "fan-orders.yaml", PYTHONPATH=path) == (7, "['--props', 'fan-orders.yaml']\n", "")


def test_packages_that_another_distribution_has_installed_over_ours_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.require_own_packages()
    monkeypatch.setattr(launch, "ROOT", tmp_path)
    with pytest.raises(PenstockError, match="the package `common` of Penstock is missing in"):
        launch.require_own_packages()
    (tmp_path / "acme-1.2.dist-info").mkdir()
    (tmp_path / "acme-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.2\n")
    (tmp_path / "acme-1.2.dist-info" / "RECORD").write_text("acme/__init__.py,,\ncommon/logs.py,,\n")
    with pytest.raises(PenstockError, match=r"the distribution acme 1\.2 installs a package `common` into "):
        launch.require_own_packages()


def test_our_packages_are_found_before_others_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    free, other = str(tmp_path / "free"), str(tmp_path)
    assert launch.python_path({}, [free, str(ROOT), other]) == {}
    assert launch.python_path({}, [other, str(ROOT)]) == {"PYTHONPATH": str(ROOT)}
    assert launch.python_path({"PYTHONPATH": other}, [other, str(ROOT)]) == {"PYTHONPATH": f"{ROOT}{os.pathsep}{other}"}
    assert launch.python_path({}, [free]) == {"PYTHONPATH": str(ROOT)}, "a checkout that is not installed"


@pytest.mark.parametrize(
    "call",
    [
        "penstock run mpush-orders.yaml",
        "python -m penstock run mpush-orders.yaml",
        "penstock run --service mpush orders.yaml",
    ],
)
def test_a_procfile_may_run_services_so(tmp_path: Path, call: str) -> None:
    (tmp_path / call.split()[-1]).write_text(PROPS)
    (tmp_path / "Procfile").write_text(f"fan: {call}\n")
    (part,) = read(tmp_path).parts
    assert (part.service, part.namespace, part.module[0]) == ("mpush", "demo", "services.mpush")


@pytest.mark.parametrize("words", [["--help"], ["--check"]])
def test_a_missing_extra_is_one_line_that_says_what_to_install(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("raise ModuleNotFoundError(name='pyspark')\n")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    call = [sys.executable, "-m", "services.pipeline", *words]
    ran = subprocess.run(call, env=environ, capture_output=True, text=True, check=False)
    expected = "pipeline: pyspark is not installed: pip install 'penstock[spark]'\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", expected)


async def test_the_version_is_printed() -> None:
    result = await penstock("--version")
    assert (result.status, result.text) == (0, f"penstock {__version__}\n")


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_gets_a_script_and_completes_commands_and_options(tmp_path: Path, shell: str) -> None:
    status, script, _ = ended(tmp_path, "", _PENSTOCK_COMPLETE=f"source_{shell}")
    assert status == 0
    assert f"complete_{shell}" in script
    offered: dict[str, Any] = {"bash": ("sho", "1"), "zsh": "penstock sho", "fish": "penstock sho"}
    asked = {"_PENSTOCK_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "penstock sho"}
    asked |= {"COMP_WORDS": "penstock sho", "COMP_CWORD": offered["bash"][1], "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    _, out, _ = ended(tmp_path, **asked)
    assert "shovel" in out
    assert "status" not in out
    asked |= {"COMP_WORDS": "penstock shovel --un", "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": "penstock shovel --un"}
    assert "--until-empty" in ended(tmp_path, **asked)[1]


def test_the_command_line_imports_nothing_slow_before_a_command_asks_for_it() -> None:
    slow = "redis", "pydantic", "yaml", "rich", "importlib.metadata"
    code = f"import sys, penstock.cli; print([name for name in {slow} if name in sys.modules])"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
