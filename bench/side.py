"""A process that takes orders: lines of JSON, a name and values each; its answers are lines of JSON, too."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.harness import ROOT


class Side:
    """Control that process."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.pid = process.pid
        self._process = process

    def order(self, name: str, *values: Any) -> dict[str, float]:
        """Send an order, and return its first answer."""
        self.send(name, *values)
        return self.answer()

    def send(self, name: str, *values: Any) -> None:
        """Send an order."""
        print(json.dumps([name, *values]), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, float]:
        """Return the next answer."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        assert line, f"{self._process.args!r} has ended"
        found: dict[str, float] = json.loads(line)
        return found


@contextmanager
def side(*command: str, **environment: str) -> Iterator[Side]:
    """Run ``command`` while the block runs."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Side(process)
        finally:
            process.kill()
