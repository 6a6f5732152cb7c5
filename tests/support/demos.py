"""Run demos of compositions as a user does."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def environment(url: str | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "REDIS"}
    return kept | ({"REDIS": url} if url else {})


def demonstrate(url: str | None, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``words``, on the server at ``url``, or on one that the demo starts if None."""
    command = [sys.executable, *words]
    return subprocess.run(command, env=environment(url), cwd=ROOT, capture_output=True, text=True, timeout=90)


def begun(url: str | None, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *words], env=environment(url), cwd=ROOT, stderr=subprocess.DEVNULL)
