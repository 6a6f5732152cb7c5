"""Notes on the server of lists that are no part of a composition any more: what a killed ``apply`` leaves to do.

They lie in the hash ``<ns>:changes``, one a list: ``renamed NEW`` until what it holds has been moved, ``moved NEW``
from then on, so that what still comes is moved, too; ``removed`` until it was found empty, or deleted.
"""

from typing import Final

from penstock.keys import Keys

REMOVED: Final = "removed"


def key_of(namespace: str) -> str:
    """The hash of the notes."""
    return Keys(namespace).changes


def renamed(name: str) -> str:
    return f"renamed {name}"


def moved(name: str) -> str:
    return f"moved {name}"


def target(note: str) -> str | None:
    """The new name; None of a list that has none."""
    state, _, name = note.partition(" ")
    return name if state in ("renamed", "moved") else None


def is_moved(note: str) -> bool:
    return note.startswith("moved ")
