"""Where lines of a log go while nobody reads them: nothing waits, and what was dropped is counted."""

import io
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import pytest

from common import log_output
from common.log_output import Output
from tests.support.harness import PATIENCE


def counted(lines: int) -> str:
    return f"dropped {lines}"


@pytest.fixture(params=["pipe", "socket"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[int, TextIO]]:
    """Yield the descriptor of a reader that stands still, and the file that a service writes to."""
    if request.param == "pipe":
        reader, writer = os.pipe()
    else:
        near, far = socket.socketpair()
        reader, writer = near.detach(), far.detach()
    file = os.fdopen(writer, "w")
    yield reader, file
    os.close(reader)
    with suppress(OSError):  # what is left has no reader
        file.close()


def read_all(reader: int, last: str) -> str:
    """Return what is read until a line ``last`` has come."""
    found = b""
    done = threading.Event()
    timer = threading.Timer(PATIENCE, done.set)
    timer.start()
    while not done.is_set() and not re.search(rf"(?m)^{last}$".encode(), found):
        found += os.read(reader, 65_536)
    timer.cancel()
    return found.decode()


def test_lines_come_at_once_and_in_order(ends: tuple[int, TextIO]) -> None:
    reader, file = ends
    output = Output(file, counted)
    for number in range(100):
        output.write(f"line {number}")
    assert read_all(reader, "line 99").splitlines() == [f"line {number}" for number in range(100)]
    assert output._thread is None


def test_a_reader_that_stands_still_stops_nobody_and_hears_of_what_was_dropped(ends: tuple[int, TextIO]) -> None:
    reader, file = ends
    output = Output(file, counted)
    many = 20_000
    for number in range(many):
        output.write(f"line {number} {'x' * 90}")
    lines = read_all(reader, r"dropped \d+").splitlines()
    kept = [int(line.split()[1]) for line in lines if line.startswith("line")]
    assert kept == [*range(len(kept))], "in order, the first ones"
    assert lines[-1] == f"dropped {many - len(kept)}"
    output.flush(PATIENCE)
    output.write("back")
    assert read_all(reader, "back") == "back\n"


def test_a_line_longer_than_a_pipe_takes_at_once_is_one_line_and_in_order(ends: tuple[int, TextIO]) -> None:
    reader, file = ends
    output = Output(file, counted)
    for number in range(3):
        output.write("x" * 10_000)
        output.write(str(number))
    assert read_all(reader, "2").splitlines() == ["x" * 10_000, "0", "x" * 10_000, "1", "x" * 10_000, "2"]


def test_the_end_of_the_process_waits_for_a_moment_only(ends: tuple[int, TextIO]) -> None:
    _, file = ends
    output = Output(file, counted)
    for _ in range(5_000):
        output.write("x" * 200)
    assert output._lines
    output.flush(0.01)
    assert output._lines


def test_an_inherited_descriptor_gets_no_flag() -> None:
    """It is that of the shell, and of all who share it."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        Output(file, counted).write("x")
        assert os.get_blocking(writer)
    os.close(reader)


def test_a_reader_that_has_gone_stops_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    file = os.fdopen(writer, "w")
    output = Output(file, counted)
    for _ in range(10):
        output.write("x" * 9_000)
        output.write("x")
    output.flush(PATIENCE)
    assert not output._lines


def test_a_stream_without_a_descriptor_is_written_to() -> None:
    stream = io.StringIO()
    Output(stream, counted).write("ä \ud800")
    assert stream.getvalue() == "ä \\ud800\n"


def test_the_bounds_are_those_of_lines_and_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        monkeypatch.setattr(log_output, "MAX_WAITING_BYTES", 1_000_000)
        output = Output(file, counted)
        for _ in range(400):
            output.write("x" * 9_999)
        assert output._size <= 1_000_000
        assert output._dropped > 250
        threading.Thread(target=read_all, args=(reader, r"dropped \d+"), daemon=True).start()
        output.flush(PATIENCE)
        assert not output._lines
