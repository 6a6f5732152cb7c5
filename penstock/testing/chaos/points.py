"""Injection points: one for each kind of command that a process sends in a phase of its life."""

import re
from dataclasses import dataclass
from enum import Enum
from hashlib import sha1
from typing import Final

CONTAINERS: Final = frozenset({"CLIENT", "CONFIG", "SCRIPT", "XINFO", "XGROUP", "FUNCTION", "OBJECT", "MEMORY", "ACL"})
"""Commands whose second word is part of their name."""
SCRIPTS: Final = frozenset({"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO"})
NAME: Final = re.compile(rb"[A-Za-z_{][\w:.{}/|-]{0,79}")
HASHED: Final = re.compile(r"[0-9a-f]{16,}")
SHAPE_NAMES: Final = 2
"""Names that tell a command from others of the same kind."""


class Phase(Enum):
    """When a process sends a command: at its start, while messages flow, after a kill, or when it is asked to stop."""

    START = "start"
    FLOW = "flow"
    RECOVER = "recover"
    STOP = "stop"


@dataclass(frozen=True, order=True)
class Point:
    """A command of a process; ``shape`` is the part of it that is the same each time.

    ``after`` is the command at which the process was killed before it recovered.
    """

    process: str
    phase: str
    server: str
    shape: str
    after: str = ""

    def __str__(self) -> str:
        after = f" after {self.after}" if self.after else ""
        return f"{self.process} {self.phase}: {self.shape}{after}"


def shape_of(words: list[bytes]) -> str:
    """Return the name of a command and the first names among its words, without numbers.

    For example ``BLMOVE weather:in weather:pending:#``. A script is named by the beginning of its digest, for EVAL and
    EVALSHA alike.
    """
    name = words[0].decode(errors="replace").upper()
    rest = words[1:]
    if name in CONTAINERS and rest:
        name, rest = f"{name} {rest[0].decode(errors='replace').upper()}", rest[1:]
    if name in SCRIPTS and rest:
        digest = rest[0].decode(errors="replace") if name.startswith("EVALSHA") else sha1(rest[0]).hexdigest()
        count = int(rest[1]) if len(rest) > 1 and rest[1].isdigit() else 0
        name, rest = f"{name} {digest[:7]}", rest[2 : 2 + count]
    names = [word.decode() for word in rest[:8] if NAME.fullmatch(word)]
    kept = [re.sub(r"\d+", "#", each) for each in names if not HASHED.search(each) and "penstock-chaos" not in each]
    return " ".join([name, *kept[:SHAPE_NAMES]])
