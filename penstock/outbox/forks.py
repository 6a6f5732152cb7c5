"""What a child that the process forks must not have: locks, listening sockets, connections.

It keeps them open, and locks held, as long as it lives, also after the process has died. In the child the number of
each file is one of nothing, so that to close it there is harmless. A child that executes a program has none anyway.
"""

import os
from typing import Final, Protocol
from weakref import WeakSet


class File(Protocol):
    """Something with a file, whose number is negative once it is closed."""

    def fileno(self) -> int: ...


_ours: Final = WeakSet[File]()


def keep(file: File) -> None:
    """Let no child have ``file``, as long as it is open."""
    _ours.add(file)


def _lose_all() -> None:
    files = [file for each in _ours if (file := each.fileno()) >= 0]
    if files:
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for file in files:
            os.dup2(nothing, file, inheritable=False)
        os.close(nothing)
        _ours.clear()


os.register_at_fork(after_in_child=_lose_all)
