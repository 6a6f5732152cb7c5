"""The processes of a Procfile, and output that nobody can write."""

import asyncio
import errno
from pathlib import Path

import pytest

from penstock.composition.procfile import Line, ProcessGroup
from penstock.core import child
from tests.support.harness import PATIENCE


async def ended(group: ProcessGroup) -> dict[str, int]:
    """Start ``group`` and return the statuses, once all have ended by themselves."""
    async with group, asyncio.timeout(PATIENCE):
        await group.start()
        await group.wait(asyncio.Event())
        return dict(group.statuses)


async def test_a_full_disk_drops_lines_and_no_end_is_missed(tmp_path: Path) -> None:
    procfile = tmp_path / "Procfile"
    procfile.write_text("one: echo first; echo second; exit 3\n")
    kept = list[bytes]()

    def write(line: Line) -> None:
        if line.data == b"first\n":
            raise OSError(errno.ENOSPC, "No space left on device")
        kept.append(line.data)

    assert await ended(ProcessGroup(tmp_path, write=write, stop=1)) == {"one": 3}
    assert kept == [b"second\n"]


async def test_a_line_without_end_is_dropped_and_the_next_ones_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "MAX_LINE", 10_000)
    procfile = tmp_path / "Procfile"
    procfile.write_text("one: head -c 200000 /dev/zero; echo; echo last\n")
    kept = list[bytes]()
    assert await ended(ProcessGroup(tmp_path, write=lambda line: kept.append(line.data), stop=1)) == {"one": 0}
    assert kept[-1] == b"last\n"


async def test_an_error_of_whoever_takes_the_lines_is_raised(tmp_path: Path) -> None:
    procfile = tmp_path / "Procfile"
    procfile.write_text("one: echo first; exit 0\n")

    def write(_: Line) -> None:
        raise LookupError("no such line")

    with pytest.raises(LookupError, match="no such line"):
        await ended(ProcessGroup(tmp_path, write=write, stop=1))
