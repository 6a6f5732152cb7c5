"""Packages of Node that a demo installs with npm below ``build``; without Node a program does the same in Python."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

BUILD: Final = Path(__file__).parent.parent / "build"
INSTALL_SECONDS: Final = 180


@dataclass(frozen=True)
class NodePackage:
    """The package ``name``, with what else its ``manifest``, a package.json, wants."""

    name: str
    manifest: Path

    @property
    def folder(self) -> Path:
        return BUILD / self.name

    @property
    def modules(self) -> Path:
        return self.folder / "node_modules"

    def install(self) -> str | None:
        """Install it unless it is there; return why it cannot be used, if so."""
        if not shutil.which("node"):
            return "there is no Node"
        if (self.modules / self.name).exists():
            return None
        if not shutil.which("npm"):
            return "there is no npm"
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.manifest, self.folder)
        words = ["npm", "install", "--prefix", str(self.folder), "--no-audit", "--no-fund", "--ignore-scripts"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return "npm takes too long"
        return None if done.returncode == 0 else f"npm fails: {done.stderr.strip().partition(chr(10))[0]}"

    @property
    def is_installed(self) -> bool:
        """Return whether it can be used."""
        return shutil.which("node") is not None and (self.modules / self.name).exists()

    def become(self, script: Path) -> NoReturn:
        """Replace this process by Node with ``script``."""
        os.execvpe("node", ["node", str(script)], os.environ | {"NODE_PATH": str(self.modules)})
