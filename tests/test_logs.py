"""What a service writes to standard error."""

import io
import json
import sys
from collections.abc import Iterator

import pytest
import structlog

from common import logs


class Writes(io.StringIO):
    """Each write by itself, as the kernel gets them where Python does not buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def write(self, text: str) -> int:
        self.all.append(text)
        return len(text)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    writes = Writes()
    monkeypatch.setattr(sys, "stderr", writes)
    logs.configure("info")
    yield writes.all
    structlog.reset_defaults()


def test_a_line_is_one_write_so_that_services_do_not_mix_theirs(written: list[str]) -> None:
    structlog.get_logger("mpush").info("taken", message="two\nlines")
    structlog.get_logger("mpush").debug("not asked for")
    (line,) = written
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert json.loads(line).items() >= {"event": "taken", "level": "info", "message": "two\nlines"}.items()
