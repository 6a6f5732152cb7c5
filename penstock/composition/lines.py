"""The line of a name within the list that a file sets: what read it knows where the list begins."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.composition.model import End, Part

DERIVED: Final = ("events", "done", "dead")
"""Roles of keys whose names are made from a namespace: that stands in the file."""


def precise(parts: Iterable[Part]) -> tuple[Part, ...]:
    """The parts, each end of which is from the line on which its key stands."""
    return tuple(replace(part, ends=tuple(map(_precise, part.ends))) for part in parts)


def _precise(end: End) -> End:
    file, line = end.where
    if file is None or line is None:
        return end
    later = [*enumerate(_lines(file)[line - 1 :], start=line)]
    names = [end.key, end.key.rpartition(":")[0]] if end.role in DERIVED else [end.key]
    lines = (number for name in names for number, text in later if name and _has(text, name))
    return replace(end, origin=f"{file}:{next(lines, line)}")


def _has(text: str, name: str) -> bool:
    """Whether the name stands there, not as part of a longer one."""
    return re.search(rf"(?<![\w:.-]){re.escape(name)}(?![\w:.-])", text) is not None


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return []
