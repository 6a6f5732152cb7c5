"""Reading and writing of pipes, terminals and files that a signal can interrupt."""

import asyncio
import os
import select
from collections.abc import Callable, Iterator
from typing import Any, Final

READER_GONE: Final = select.POLLERR | select.POLLNVAL

GRACE_SECONDS: Final = 1.0
"""Seconds that the reader has, after a stop, to take the rest of a line that is partly written."""


async def read_some(fd: int, most: int) -> bytes:
    """Wait for input and return at most ``most`` bytes; empty at its end."""
    loop = asyncio.get_running_loop()
    await _ready(fd, loop.add_reader, loop.remove_reader)
    return os.read(fd, most)


class Output:
    """A file descriptor for lines; writing ends if its reader goes away or ``stop`` is set."""

    def __init__(self, fd: int, stop: asyncio.Event) -> None:
        self._fd, self._stop = fd, stop
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        self.error: OSError | None = None
        """Why writing failed, e.g. a full disk; ``BrokenPipeError`` if the reader has gone away."""

    async def write(self, lines: list[bytes]) -> int:
        """Write ``lines`` and return how many were written in full."""
        count = 0
        for piece in _pieces(lines):
            if not await self._write(b"".join(piece)):
                break
            count += len(piece)
        return count

    def reader_is_gone(self) -> bool:
        """Return True if the reader has closed its end; nothing is written to find out."""
        return any(event & READER_GONE for _, event in self._poll.poll(0))

    async def _write(self, data: bytes) -> bool:
        """Write in parts that a ready pipe takes without blocking; return False if stopped or failed."""
        view, written = memoryview(data), 0
        while written < len(data):
            if not self._poll.poll(0) and not await self._room(begun=written > 0):
                return False
            try:
                written += os.write(self._fd, view[written : written + select.PIPE_BUF])
            except OSError as error:
                self.error = error
                return False
        return True

    async def _room(self, *, begun: bool) -> bool:
        loop = asyncio.get_running_loop()
        ready = asyncio.ensure_future(_ready(self._fd, loop.add_writer, loop.remove_writer))
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((ready, stop), return_when=asyncio.FIRST_COMPLETED)
        if begun and not ready.done():
            await asyncio.wait((ready,), timeout=GRACE_SECONDS)
        has_room = ready.done()
        for task in (ready, stop):
            task.cancel()
        await asyncio.gather(ready, stop, return_exceptions=True)
        return has_room


def _pieces(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Yield groups of lines that fit one atomic write; a longer line is a group of its own."""
    piece: list[bytes] = []
    size = 0
    for line in lines:
        if piece and size + len(line) > select.PIPE_BUF:
            yield piece
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield piece


def _unless_done(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


async def _ready(fd: int, watch: Callable[..., Any], forget: Callable[[int], Any]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    try:
        watch(fd, _unless_done, done)
    except PermissionError:  # a regular file is always ready; epoll does not take it
        return
    try:
        await done
    finally:
        forget(fd)
