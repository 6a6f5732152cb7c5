"""Findings of lint: what is wrong with a composition, with file and line."""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from penstock.base.errors import Problem
from penstock.base.shape import End
from penstock.composition.model import Part


@dataclass(frozen=True)
class Finding:
    """One ``problem`` and the name of the ``rule`` that found it; a ``note`` matters to Redis Clusters only."""

    rule: str
    problem: Problem
    note: bool = False


def at(rule: str, part: Part, end: End, message: str) -> Finding:
    """Return a finding at the line that names ``end``, or else in the file of ``part``."""
    problem = end.problem(message)
    return Finding(rule, problem if problem.file else Problem(message, part.file, None, end.setting))


def at_property(rule: str, part: Part, property: str, message: str) -> Finding:
    """Return a finding at the line that sets ``property`` of ``part``, or else in its file."""
    origins = part.settings.origins() if part.settings is not None else {}
    file, _, line = origins.get(property, "").rpartition(":")
    found, number = (file, int(line)) if line.isdigit() else (part.file, None)
    return Finding(rule, Problem(message, found, number, property))


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``: did you mean X?``; empty if no known name is similar."""
    found = get_close_matches(name, sorted(set(known) - {name}), n=1, cutoff=0.75)
    return f": did you mean {found[0]!r}?" if found else ""


def display_name(part: Part) -> str:
    """Return the name of a part and its service: ``archive (mdispatch)``."""
    return f"{part.name} ({part.service})" if part.service and part.service != part.name else part.name
