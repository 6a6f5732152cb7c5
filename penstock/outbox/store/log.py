"""The write-ahead log of a store: whether it has all that was committed, which SQLite does not ask.

SQLite reads a log up to the first frame that does not verify and takes that for its end, as after a torn last write.
But a frame is written after a commit only once that commit is on disk. So if a frame that does not verify is followed
by a commit and a frame behind it, what was committed is damaged. The index beside the log (``-shm``) says the same of a
log that was cut: it is written once a commit is on disk. https://www.sqlite.org/walformat.html
"""

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from penstock.outbox.store.statements import damaged

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""Byte order of the words that checksums are about."""
_INDEX: Final = struct.Struct("=4I2I2I8s2I")
_BACKFILLED: Final = struct.Struct("=I")
_NATIVE: Final = "<" if sys.byteorder == "little" else ">"
_MASK: Final = 0xFFFFFFFF
PAGE_BYTES: Final = 4096
"""Of a page of a store whose log does not say it."""

Sum = tuple[int, int]


class Frame(NamedTuple):
    """A page as a transaction has left it."""

    page: int
    pages: int
    """Of the store after the commit that ends with this frame; 0 if the transaction goes on."""
    is_whole: bool
    """Whether it verifies, by the checksum of the frame before as it is written there."""
    is_current: bool
    """Whether it is of this log, not of one that was written over."""
    data: bytes


def log_of(path: Path) -> Path:
    """Return the path of the log of the store at ``path``."""
    return path.with_name(f"{path.name}-wal")


def check(path: Path, *, expected: bool) -> None:
    """Make sure that the store at ``path`` has its log, and that this is whole. Nobody may have it open.

    ``expected``: its owner ended without closing it, so there is a log. Raise ``Damaged``.
    """
    log = log_of(path)
    size = path.stat().st_size if path.exists() else 0
    log_size = log.stat().st_size if log.exists() else 0
    if not size and (expected or log_size):
        raise damaged(
            f"{path} is {'empty' if path.exists() else 'gone'}, though its owner has ended without closing it"
        )
    if not log_size:
        if expected or _last_committed(path, None):
            what = "empty" if log.exists() else "gone"
            raise damaged(f"{log} is {what}, though the owner of {path.name} has ended without closing it")
        return
    with log.open("rb") as file:
        header = _read_header(file)
        if header is None and log_size <= _HEADER.size:
            return  # torn when it began
        if header is None:
            raise damaged(f"the header of {log} does not verify; {path.name} is as it was before the log began")
        whole, committed, is_cut = 0, 0, False
        was_commit = False
        for number, frame in enumerate(_frames(file, *header), 1):
            if frame.is_whole and whole == number - 1:
                whole, committed = number, number if frame.pages else committed
            elif frame.is_whole and was_commit:
                is_cut = True
                break
            was_commit = frame.is_current and frame.pages > 0
    last = _last_committed(path, header[2])
    if is_cut or last > committed:
        have = f"{committed:,} of {last:,}" if last > committed else f"the first {committed:,}"
        raise damaged(f"{log} is damaged behind frame {whole:,}: {have} committed frames are whole, and {path.name}")


def sync(path: Path) -> None:
    """Have the log on disk: what a killed process has written, and not synced, counts as committed once it is read."""
    if log_of(path).exists():
        with log_of(path).open("rb+") as file:
            os.fsync(file.fileno())


def apply(path: Path) -> tuple[int, int]:
    """Write the frames that verify into the store at ``path`` up to the last commit, and remove its log.

    A frame that does not verify loses nothing if its page was written again. Return how many frames were whole, and
    how many were not.
    """
    log = log_of(path)
    if not log.exists():
        return 0, 0
    with log.open("rb") as file, path.open("r+b" if path.exists() else "w+b") as store:
        header = _read_header(file, guess=True)
        frames = [each._replace(data=b"") for each in _frames(file, *header)] if header else []
        last = max((n for n, each in enumerate(frames, 1) if each.pages and each.is_whole), default=0)
        for number, each in enumerate(frames[:last]):
            if header and each.is_whole:
                file.seek(_HEADER.size + number * (_FRAME.size + header[1]) + _FRAME.size)
                store.seek((each.page - 1) * header[1])
                store.write(file.read(header[1]))
        if header and last:
            store.truncate(frames[last - 1].pages * header[1])
    log.unlink()
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    whole = sum(each.is_whole for each in frames[:last])
    return whole, sum(each.is_current for each in frames) - whole


Header = tuple[str, int, bytes, Sum]
"""Byte order, bytes of a page, salts and checksum."""


def _read_header(file: BinaryIO, *, guess: bool = False) -> Header | None:
    """Return what the log begins with; None if it does not verify, or, with ``guess``, if there is nothing behind."""
    raw, frame = file.read(_HEADER.size), file.read(_FRAME.size)
    file.seek(_HEADER.size)
    if len(raw) < _HEADER.size:
        return None
    magic, _, page_bytes, _, _, _, *stored = _HEADER.unpack(raw)
    order = _MAGIC.get(magic, "")
    if order and _sum(order, raw[:24], (0, 0)) == tuple(stored):
        return order, page_bytes, raw[16:24], (stored[0], stored[1])
    return (_NATIVE, PAGE_BYTES, frame[8:16], (stored[0], stored[1])) if guess and frame else None


def _frames(file: BinaryIO, order: str, page_bytes: int, salts: bytes, before: Sum) -> Iterator[Frame]:
    """Yield the frames that follow in ``file``."""
    while len(raw := file.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
        page, pages, _, _, first, second = _FRAME.unpack_from(raw)
        stored = (first, second)
        is_current = raw[8:16] == salts
        is_whole = is_current and _sum(order, raw[:8] + raw[_FRAME.size :], before) == stored
        before = stored
        yield Frame(page, pages, is_whole, is_current, raw[_FRAME.size :])


def _sum(order: str, data: bytes, before: Sum) -> Sum:
    first, second = before
    for one, other in struct.iter_unpack(f"{order}II", data):
        first = (first + one + second) & _MASK
        second = (second + other + first) & _MASK
    return first, second


def _last_committed(path: Path, salts: bytes | None) -> int:
    """Return the number of the last committed frame that the index knows; 0 if it is of another log, or unknown.

    Without ``salts``, which has no log: 0 if all of it is in the store.
    """
    try:
        index = path.with_name(f"{path.name}-shm").read_bytes()[:136]
    except OSError:
        return 0
    for start in (0, _INDEX.size):
        raw = index[start : start + _INDEX.size]
        if len(raw) < _INDEX.size or len(index) < 100:
            continue
        _, _, _, _, frames, _, _, _, known, *stored = _INDEX.unpack(raw)
        if _sum(_NATIVE, raw[:40], (0, 0)) != tuple(stored):
            continue
        if salts is None:
            (copied,) = _BACKFILLED.unpack_from(index, 96)
            return int(frames) if copied < frames else 0
        return int(frames) if known == salts else 0
    return 0
