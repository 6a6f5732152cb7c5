"""Whether a process of this machine has ended: not by its id alone, which others get again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common import neighbours
from common.neighbours import has_ended, process

pytestmark = pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="needs Linux's /proc")


def test_a_process_that_lives_has_not_ended_and_one_that_was_killed_has() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        name = process(other.pid)
        assert name
        assert not has_ended(name)
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(name), "a zombie holds nothing any more"
    assert has_ended(name)
    assert not has_ended(process(os.getpid()))


def test_another_process_with_its_id_is_not_that_process() -> None:
    where, _, _ = process(os.getpid()).rpartition("/")
    assert has_ended(f"{where}/17")


@pytest.mark.parametrize("name", ["", "x", "7", "another boot/pid:[1]/7/17", "//", "a/b/c/d"])
def test_of_another_machine_or_namespace_nothing_is_known(name: str) -> None:
    assert not has_ended(name)


def test_without_proc_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = process(os.getpid())
    monkeypatch.setattr(neighbours, "PROC", tmp_path)
    assert process(os.getpid()) == ""
    assert not has_ended(name)


def test_a_process_that_proc_hides_has_not_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As with hidepid=2, or a unit with ProtectProc=invisible, for the processes of other users."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        name = process(other.pid)
        monkeypatch.setattr(neighbours, "_stat", lambda _: ("", ""))
        assert not has_ended(name)
        other.kill()
    assert has_ended(name)
