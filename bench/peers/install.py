"""Installation of peers, each in its own directory below ``build/peers``: a virtual environment or ``node_modules``."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.harness import ROOT

HOME: Final = ROOT / "build" / "peers"
INSTALL_SECONDS: Final = 300
"""Maximum seconds for one installation."""


class NotInstalled(Exception):
    """A peer cannot be installed here; the message says why."""


@dataclass(frozen=True)
class Installed:
    """How to start a driver of the peer: command prefix, environment, directory."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    directory: Path = HOME
    version: str = ""


@dataclass(frozen=True)
class FromPyPI:
    """Install from PyPI: ``packages`` are requirements with versions; the first one is the peer itself."""

    packages: tuple[str, ...]

    @property
    def version(self) -> str:
        return self.packages[0].partition("==")[2]

    def into(self, directory: Path) -> Installed:
        """Raises ``NotInstalled``."""
        python = directory / "bin" / "python"
        if _changed(directory, self.packages):
            _run(sys.executable, "-m", "venv", str(directory))
            quiet = ("-q", "--disable-pip-version-check", "--retries", "1", "--timeout", "15")
            _run(str(python), "-m", "pip", "install", *quiet, *self.packages)
            _note(directory, self.packages)
        return Installed((str(python), "-m"), {"PYTHONPATH": str(ROOT)}, directory, self.version)


@dataclass(frozen=True)
class FromNpm:
    """Install from npm: ``packages`` and ``overrides`` map names to versions; the first package is the peer itself."""

    packages: dict[str, str]
    overrides: dict[str, str] = field(default_factory=dict)

    @property
    def version(self) -> str:
        return next(iter(self.packages.values()))

    def into(self, directory: Path) -> Installed:
        """Raises ``NotInstalled``."""
        for program in ("node", "npm"):
            if not shutil.which(program):
                raise NotInstalled(f"no {program}")
        manifest = {"private": True, "dependencies": self.packages, "overrides": self.overrides}
        wanted = (json.dumps(manifest, indent=2),)
        if _changed(directory, wanted):
            (directory / "package.json").write_text(wanted[0])
            patience = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000")
            quiet = ("--no-audit", "--no-fund", "--ignore-scripts")
            _run("npm", "install", "--prefix", str(directory), *quiet, *patience)
            _note(directory, wanted)
        return Installed(("node",), {"NODE_PATH": str(directory / "node_modules")}, directory, self.version)


@dataclass(frozen=True)
class FromDebian:
    """Use the server of a Debian package, which must be installed already, and install its client from PyPI."""

    package: str
    binary: Path
    client: FromPyPI

    def into(self, directory: Path) -> Installed:
        """Raises ``NotInstalled``."""
        if not self.binary.exists():
            raise NotInstalled(f"Debian's package {self.package} is not installed")
        installed = self.client.into(directory)
        asked = subprocess.run(
            ["dpkg-query", "--show", "--showformat=${Version}", self.package],
            capture_output=True,
            text=True,
            check=False,
        )
        version = f"{asked.stdout.strip() or 'unknown'}, client {self.client.packages[0].replace('==', ' ')}"
        return Installed(installed.command, installed.environment, directory, version)


Origin = FromPyPI | FromNpm | FromDebian


def _changed(directory: Path, wanted: Sequence[str]) -> bool:
    """Return False if exactly ``wanted`` is installed in ``directory``; otherwise empty it and return True."""
    note = directory / "installed"
    if note.exists() and note.read_text() == "\n".join(wanted):
        return False
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return True


def _note(directory: Path, wanted: Sequence[str]) -> None:
    (directory / "installed").write_text("\n".join(wanted))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{_named(command)} took longer than {INSTALL_SECONDS} s") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        reason = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "it said nothing")
        raise NotInstalled(f"{_named(command)}: {reason}")


def _named(command: Sequence[str]) -> str:
    return "npm install" if command[0] == "npm" else "pip install" if "pip" in command else "venv"
