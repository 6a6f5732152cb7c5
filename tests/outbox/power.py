"""A disk that loses its power: what a process has done to files (``recorder.c``), and what a cut may leave of it.

What was not synced may be there as a whole, in part, or not at all, in any order; of a name that was made or removed,
and whose directory was not synced, either may be left. The index of a log is in shared memory, and is not there at all.
"""

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

SECTOR: Final = 512


class Done(NamedTuple):
    """A call that has returned."""

    what: str
    path: Path
    at: int
    data: bytes


def recorder(build: Path) -> Path:
    """Return the library to preload; skip the test without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library, source = build / "recorder.so", Path(__file__).with_name("recorder.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def recorded(record: Path) -> list[Done]:
    """Return what is in a record."""
    content, found, at = record.read_bytes(), list[Done](), 0
    while at < len(content):
        end = content.index(b"\n", at)
        what, path, place, length = content[at:end].decode().split("\t")
        size = int(length) if what == "write" else 0
        found.append(Done(what, Path(path), int(place), content[end + 1 : end + 1 + size]))
        at = end + 1 + size
    return found


class Disk:
    """The files of a directory: what is surely there, and what may be."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._contents = dict[str, bytearray]()
        self._pending = dict[str, list[Done]]()
        self._named, self._unsure = set[str](), dict[str, bool]()
        """Names that are surely there, and those that were made (True) or removed since the directory was synced."""

    def do(self, done: Done) -> None:
        name = done.path.name
        if done.path == self._directory and done.what == "sync":
            for each, is_made in self._unsure.items():
                (self._named.add if is_made else self._named.discard)(each)
            self._unsure.clear()
        elif done.path.parent != self._directory:
            return
        elif done.what == "remove":
            self._unsure[name] = False
        elif done.what == "sync":
            for write in self._pending.pop(name, []):
                _apply(self._contents.setdefault(name, bytearray()), write)
        elif done.what in ("write", "cut"):
            if (name not in self._named and name not in self._unsure) or self._unsure.get(name) is False:
                self._unsure[name] = True
                self._contents[name], self._pending[name] = bytearray(), []
            self._pending.setdefault(name, []).append(done)

    def lose_power(self, to: Path, keep: Callable[[], bool]) -> None:
        """Write what is left into ``to``; ``keep`` says of each that was not synced whether it is there."""
        to.mkdir()
        unsure = {name for name, is_made in self._unsure.items() if keep() == is_made}
        for name in (self._named - self._unsure.keys()) | unsure:
            if name.endswith("-shm"):
                continue
            content = bytearray(self._contents.get(name, b""))
            for each in self._pending.get(name, ()):
                _apply(content, each, keep)
            (to / name).write_bytes(content)


def _apply(content: bytearray, done: Done, keep: Callable[[], bool] = lambda: True) -> None:
    if done.what == "cut":
        if keep():
            del content[done.at :]
            content.extend(bytes(done.at - len(content)))
        return
    for start in range(0, len(done.data), SECTOR):
        part = done.data[start : start + SECTOR]
        if keep():
            at = done.at + start
            content.extend(bytes(max(0, at + len(part) - len(content))))
            content[at : at + len(part)] = part


def keeps(dice: random.Random, share: float) -> Callable[[], bool]:
    return lambda: dice.random() < share
