"""Log lines of a service on standard error."""

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from common import logs
from penstock.base.log import SELDOM_SECONDS, Log, Seldom
from penstock.composition.procfile import for_people
from tests.support.harness import Service, until


class RecordedWrites(io.StringIO):
    """A stream that records each write by itself, as the kernel gets them from an unbuffered stream."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []

    def write(self, text: str) -> int:
        self.all.append(text)
        return len(text)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    writes = RecordedWrites()
    monkeypatch.setattr(sys, "stderr", writes)
    logs.configure("info")
    yield writes.all
    structlog.reset_defaults()


def test_up_shows_lines_at_a_terminal_as_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    line = '{"service": "mpush", "event": "registered", "level": "info", "timestamp": "2026-01-01T00:00:00Z"}'
    of_a_program = '{"event": "a storm", "wind": 9}'
    assert [for_people(text) for text in (line, of_a_program)] == [line, of_a_program], "this is no terminal"
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert [for_people(text) for text in (of_a_program, "{", "plain")] == [of_a_program, "{", "plain"]
    words = re.sub(r"\x1b\[\d*m", "", for_people(line)).split()
    assert words == ["[info", "]", "registered", "service=mpush"]


def test_a_line_is_one_write_so_that_services_do_not_mix_theirs(written: list[str]) -> None:
    structlog.get_logger("mpush").info("taken", message="two\nlines")
    structlog.get_logger("mpush").debug("not asked for")
    (line,) = written
    assert line.endswith("}\n")
    assert line.count("\n") == 1
    assert json.loads(line).items() >= {"event": "taken", "level": "info", "message": "two\nlines"}.items()


class Output(io.StringIO):
    """A stream that cannot be written."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def write(self, _: str) -> int:
        raise self._error


TROUBLE = (
    BrokenPipeError(32, "Broken pipe"),
    OSError(28, "No space left on device"),
    ValueError("I/O operation on closed file"),
)


def wrong(text: str) -> Exception:
    """Return an error as a handler raises it, with a secret in one of its variables."""
    password = "hunter" + "2"
    try:
        raise LookupError(text if password else "")
    except LookupError as error:
        return error


@pytest.fixture
def unconfigured() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("trouble", TROUBLE)
def test_no_line_raises_whatever_its_output(monkeypatch: pytest.MonkeyPatch, trouble: Exception) -> None:
    monkeypatch.setattr(sys, "stderr", Output(trouble))
    logs.configure("info")
    structlog.get_logger("mpush").error("failed", reason="\ud800", exc_info=wrong("\ud800"))
    Log("penstock.lists").warning("request failed", wrong("\udcff"), xid="\udcff")
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
    Log("penstock.lists").warning("request failed", wrong("x"))


@pytest.mark.usefixtures("unconfigured")
def test_an_output_of_few_characters_gets_a_line_of_them() -> None:
    output = io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict", write_through=True)
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer()], logger_factory=structlog.WriteLoggerFactory(output)
    )
    Log("penstock.lists").info("adopted", list="\udcffb\xfc", messages=2)
    written = output.buffer.getvalue().decode()
    assert "adopted" in written
    assert "fc" in written


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize("terminal", [False, True])
def test_long_texts_are_cut_before_they_are_rendered(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
    """Rich takes minutes for 120 KB, and shows the variables of each frame."""
    output = io.StringIO()
    output.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", output)
    logs.configure("info")
    texts = list[str]()
    for log in (
        lambda error: structlog.get_logger("mpush").error("failed", reason=str(error), exc_info=error),
        lambda error: Log("penstock.lists").warning("failed", error, reason=str(error)),
    ):
        log(wrong("x" * 120_000))
        texts.append(output.getvalue())
        output.seek(0)
        output.truncate()
    for text in texts:
        assert "LookupError: xxx" in text
        assert "120,0" in text, "how long it was"
        assert len(text) < 8_000
        assert "hunter2" not in text


@pytest.mark.usefixtures("unconfigured")
def test_the_default_logs_of_a_program_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure()
    Log("penstock.lists").warning("failed", wrong("x" * 120_000))
    text = "".join(capsys.readouterr())
    assert "LookupError: xxx" in text
    assert len(text) < 8_000
    assert "hunter2" not in text


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


def test_of_what_others_decide_a_line_of_each_kind_is_written_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines = [1000.0], list[tuple[str, dict[str, object]]]()
    monkeypatch.setattr("penstock.base.log.time.monotonic", lambda: now[0])
    warn = Seldom(lambda event, **fields: lines.append((event, fields)))
    for host in range(2000):
        warn("refused", "secret", host=host)
    warn("refused", "slow", host="x")
    warn("other")
    assert lines == [("refused", {"host": 0}), ("refused", {"host": "x"}), ("other", {})]
    now[0] += SELDOM_SECONDS
    for host in range(2):
        warn("refused", "secret", host=host)
        warn("refused", "slow", host="y")
    assert lines[3:] == [("refused", {"host": 0, "times": 2000}), ("refused", {"host": "y"})]
