"""Processes of this machine: an instance of them that has died is known at once, before its registration ends."""

import os
from hashlib import sha1
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


def place() -> str:
    """Return what processes share that see each other: the boot of the machine, and the namespace of process ids.

    Empty where that is not known. A name of a host would not do: containers may share it, and no process ids.
    """
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        shared = f"{boot} {(PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""
    return sha1(shared.encode(), usedforsecurity=False).hexdigest()[:16]


def process(pid: int) -> str:
    """Return a name that no other process has had or will have.

    Empty if there is no process ``pid``, or it is a zombie, or where nothing is known of processes.
    """
    where, state, begun = place(), *_stat(pid)
    return f"{where}/{pid}/{begun}" if where and state and state not in "ZX" else ""


def has_ended(name: str) -> bool:
    """Return True if ``name``, as ``process`` returned it once, is of a process of this machine that is gone."""
    shared, _, rest = name.partition("/")
    pid, _, begun = rest.partition("/")
    if not begun or not pid.isdigit() or shared != place():
        return False
    state, now = _stat(int(pid))
    if state:
        return state in "ZX" or now != begun
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's, which /proc may hide
        return False
    return False


def _stat(pid: int) -> tuple[str, str]:
    """Return the state of a process, and when it began; two empty texts if they cannot be read."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]
