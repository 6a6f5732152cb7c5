"""Processes of this machine: an instance of them that has died is known at once, before its registration ends."""

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
    where = place()
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{where}/{pid}/{fields[19]}" if where and fields[0] not in "ZX" else ""


def has_ended(name: str) -> bool:
    """Return True if ``name``, as ``process`` returned it once, is of a process of this machine that is gone."""
    where, _, rest = name.rpartition("/")
    shared, _, pid = where.rpartition("/")
    return bool(rest) and pid.isdigit() and shared == place() and process(int(pid)) != name
