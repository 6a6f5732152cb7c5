"""A signal (Ctrl-C, a time limit) between any two opcodes loses and doubles nothing."""

import random
import subprocess
import sys

import pytest

from tests.support.harness import PATIENCE, ROOT
from tests.support.interrupted import KINDS

BLOCKING = [kind for kind in KINDS if "in a loop" not in kind]
"""Those of ``penstock.sync``, where a handler raises; in an event loop it cancels the task."""
SAMPLE = 30
"""Opcodes of each kind that the fast tests try, of some 2,500."""
MANY = 300
"""Those in an event loop that the slow tests try, of some 20,000.

A message that a cancelled task could not put back waits for its lease.
"""


def tried(url: str, kind: str, sample: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"python -m tests.support.interrupted URL {kind!r} {sample} {seed}")
    program = [sys.executable, "-m", "tests.support.interrupted", url, kind, str(sample), str(seed)]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


@pytest.mark.parametrize("kind", BLOCKING)
def test_some_interrupts_lose_and_double_nothing(redis_url: str, kind: str) -> None:
    tried(redis_url, kind, SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_interrupt_loses_or_doubles_anything(redis_url: str, kind: str) -> None:
    tried(redis_url, kind, MANY if "in a loop" in kind else 0)
