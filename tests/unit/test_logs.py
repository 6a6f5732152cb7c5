"""Log lines of a service on standard error."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from common import logs
from tests.harness import Service, until


class RecordedWrites(io.StringIO):
    """A stream that records each write by itself, as the kernel gets them from an unbuffered stream."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def write(self, text: str) -> int:
        self.all.append(text)
        return len(text)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    writes = RecordedWrites()
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


async def test_every_line_names_its_service_its_namespace_and_its_id_once_known(redis_url: str, tmp_path: Path) -> None:
    """Includes the lines of the settings, of a warning and of the end; the id begins with the registration."""
    settings = {"redis": redis_url, "redis_namespace": "demo", "in_": "in", "pending": "pending", "out": "a"}
    with Service("mpush", tmp_path / "log", **settings, done="unused") as service:
        until(lambda: "registered" in service.log_text())
        assert service.stop() == 0
    lines = [json.loads(line) for line in service.log_text().splitlines()]
    assert {line["event"] for line in lines} >= {"settings", "registered", "ended"}
    assert {(line["service"], line["namespace"]) for line in lines} == {("mpush", "demo")}
    assert any("has no effect in mpush" in line.get("problem", "") for line in lines)
    assert [list(line)[:2] for line in lines] == [["service", "namespace"]] * len(lines)
    registered = next(place for place, line in enumerate(lines) if line["event"] == "registered")
    assert not any("id" in line for line in lines[:registered])
    assert {line["id"] for line in lines[registered:]} == {lines[registered]["key"].removeprefix("demo:")}


async def test_a_service_without_a_namespace_has_neither_namespace_nor_id_in_its_lines(
    redis_url: str, tmp_path: Path
) -> None:
    with Service("mpush", tmp_path / "log", redis=redis_url, in_="in", pending="pending", out="a") as service:
        until(lambda: "settings" in service.log_text())
        assert service.stop() == 0
    lines = [json.loads(line) for line in service.log_text().splitlines()]
    assert all(line["service"] == "mpush" and not {"namespace", "id"} & line.keys() for line in lines)
