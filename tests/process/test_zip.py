"""Import from a zip archive, as from a wheel under Spark's ``--py-files``."""

import subprocess
import sys
from pathlib import Path
from sysconfig import get_path

import pytest

from penstock.core.script import Script
from tests.spark.standalone import wheel
from tests.support.harness import ROOT

IMPORT = """
import importlib, pkgutil
import common, penstock, services

houses = {house.__name__: house.__path__ for house in (common, penstock, services)}
found = [each.name for name, path in houses.items() for each in pkgutil.walk_packages(path, f"{name}.")]
for name in found:
    if not name.endswith("__main__"):
        module = importlib.import_module(name)
        assert ".whl/" in module.__file__, module.__file__
print(len(found))
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel(tmp_path_factory.mktemp("wheel"))


def isolated(archive: str | Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python with the archive and the installed packages, but without this repository."""
    environment = {"PYTHONPATH": f"{archive}:{get_path('purelib')}"}
    command = [sys.executable, "-S", "-P", *words]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("relative", [False, True])
def test_every_module_can_be_imported_from_an_archive(archive: Path, relative: bool) -> None:
    """Spark names it relative to the executor's directory, beginning with ``./``."""
    done = isolated(f"./{archive.name}" if relative else archive, "-c", IMPORT, cwd=archive.parent)
    assert (done.stderr, done.returncode) == ("", 0)
    assert int(done.stdout) > 100


def test_a_service_runs_from_an_archive(archive: Path, tmp_path: Path) -> None:
    done = isolated(archive, "-m", "services.mdispatch", "--help", cwd=tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert "redisNamespace" in done.stdout


def test_a_file_that_is_no_archive_has_no_scripts(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Script.read(tmp_path / "nothing.lua")
    assert Script.read(ROOT / "common/lua/adopt.lua").name == "adopt.lua"
