"""What is wrong with a composition as a whole, and where its files say so."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.composition.model import End, Part
from penstock.errors import Problem


@dataclass(frozen=True)
class Finding:
    """One ``problem``, and the ``rule`` that found it, a word.

    A ``note`` matters to some only: where the servers are clusters.
    """

    rule: str
    problem: Problem
    note: bool = False


def at(rule: str, part: Part, end: End, message: str) -> Finding:
    """Where ``end`` is said, or at least in which file ``part`` is."""
    problem = end.problem(message)
    return Finding(rule, problem if problem.file else Problem(message, part.file, None, end.setting))


def said(rule: str, part: Part, property: str, message: str) -> Finding:
    """Where the settings of ``part`` set ``property``."""
    origins = part.settings.origins() if part.settings is not None else {}
    file, _, line = origins.get(property, "").rpartition(":")
    found, number = (file, int(line)) if line.isdigit() else (part.file, None)
    return Finding(rule, Problem(message, found, number, property))


def nearest(name: str, known: Iterable[str]) -> str:
    """``: did you mean X?``, or nothing."""
    found = get_close_matches(name, sorted(set(known) - {name}), n=1, cutoff=0.75)
    return f": did you mean {found[0]!r}?" if found else ""


def called(part: Part) -> str:
    """``archive (mdispatch)``."""
    return f"{part.name} ({part.service})" if part.service and part.service != part.name else part.name
