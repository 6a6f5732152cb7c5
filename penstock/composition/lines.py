"""Line numbers of single names within a list in a props file; the reader only knows where the list begins."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.base.shape import End
from penstock.composition.model import Part

DERIVED: Final = ("events", "done", "dead")
"""Roles of keys that are derived from a namespace, which is in the file instead of the key."""


def precise(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts with the line of each key as the origin of its end."""
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
    """Return True if ``name`` is in ``text``, but not as part of a longer name."""
    return re.search(rf"(?<![\w:.-]){re.escape(name)}(?![\w:.-])", text) is not None


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return []
