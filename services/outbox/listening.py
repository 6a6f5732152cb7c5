"""A Unix socket for programs of one user on this machine."""

import asyncio
import fcntl
import os
import select
import socket
import stat
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from penstock.base.errors import PenstockError
from penstock.outbox import forks

BACKLOG: Final = 128
BUFFER: Final = 131_072
"""Bytes that a connection reads before they are used."""


class CannotListen(PenstockError):
    """The socket cannot be made, or somebody else listens there."""


@asynccontextmanager
async def listening(
    path: Path, serve: Callable[[StreamReader, StreamWriter], Awaitable[None]]
) -> AsyncIterator[asyncio.Server]:
    """Call ``serve`` for each connection to ``path``; remove the file at the end. Raise ``CannotListen``."""
    try:
        made, inode = await asyncio.to_thread(_made, path)
    except OSError as error:
        raise CannotListen(f"socket {path} cannot be used: {error.strerror or error}") from None
    forks.keep(made)
    server = await asyncio.start_unix_server(serve, sock=made, limit=BUFFER)
    try:
        yield server
    finally:
        server.close()
        await asyncio.to_thread(_remove, path, inode)


def has_gone(writer: StreamWriter) -> bool:
    """Return whether the program has closed its connection; one that only writes no more may still read."""
    if writer.is_closing():
        return True
    hangups = select.poll()
    hangups.register(writer.get_extra_info("socket").fileno(), 0)
    return bool(hangups.poll(0))


def _made(path: Path) -> tuple[socket.socket, int]:
    """Return a socket that listens at ``path``, in place of one whose owner has died, and its inode.

    The lock of the directory keeps another process from removing what this one has just made.
    """
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        _remove_stale(path)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(made.fileno(), 0o600)  # on Linux the file has this mode from its first moment
            made.bind(str(path))
            path.chmod(0o600)
            made.listen(BACKLOG)
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        return made, path.stat().st_ino
    finally:
        os.close(directory)


def _remove(path: Path, inode: int) -> None:
    """Remove the file at ``path`` if it is still ours."""
    with suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()


def _remove_stale(path: Path) -> None:
    """Remove the socket at ``path`` if nobody listens there. Raise ``CannotListen``."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path} is no socket: remove it, or set socket to another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except BlockingIOError:
            pass  # its queue is full: somebody listens
    raise CannotListen(f"another process listens at {path}: stop it, or set socket to another path")
