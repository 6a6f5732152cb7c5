"""Rolling upgrade: instances of the former version and of this one on the same lists lose nothing."""

import io
import os
import subprocess
import sys
import tarfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.testing.server import EmbeddedServer
from tests.support.harness import ROOT, Service, until

FORMER: Final = "45f9a58"
"""The last commit of 0.1.0."""
MESSAGES: Final = 10_000
NAMES: Final = {"in": "in", "pending": "pending", "out": "one,two", "redis_namespace": "demo", "pop_timeout": 5}


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sources of ``FORMER``."""
    found = subprocess.run(["git", "archive", FORMER, "penstock", "common", "services"], cwd=ROOT, capture_output=True)
    if found.returncode:
        pytest.skip(f"the commit {FORMER} is not here: fetch the whole history")
    folder = tmp_path_factory.mktemp("former")
    with tarfile.open(fileobj=io.BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_two_versions_share_the_work_and_adopt_what_the_other_had_in_hand(
    former: Path, server: EmbeddedServer, here: Any, tmp_path: Path
) -> None:
    assert not (former / "common" / "settings").exists(), "it is this version"
    names = {**NAMES, "redis": server.url, "batch": 50}
    with ExitStack() as running:

        def start(name: str, folder: Path) -> Service:
            service = Service("mpush", tmp_path / f"{name}.log", **names)
            service.folder = folder
            return running.enter_context(service)

        services = [start("former", former), start("this", ROOT)]
        until(lambda: here.llen("demo:ids") == 2)
        for number in range(MESSAGES):
            here.lpush("in", number)
            if number == MESSAGES // 3:
                services[0].kill()
                here.delete("demo:1", "demo:2")
                services = [start("this too", ROOT), start("former too", former)]
        until(lambda: here.llen("one") >= MESSAGES and here.llen("two") >= MESSAGES, 60)
        for service in services:
            assert service.stop() == 0, service.log_text()
        for name in ("one", "two"):
            counts = Counter(map(int, here.lrange(name, 0, -1)))
            assert counts == Counter(range(MESSAGES)), f"{name}: lost or doubled"
    assert not here.exists("in")
    assert not here.keys("pending*")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "audit", "demo", "--redis", server.url],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, f"conserved: {MESSAGES:,} messages settled, 0 pending" in done.stdout) == (0, True), done
