"""Notes of unfinished changes: which lists a killed ``apply`` has yet to move or remove.

The hash ``<ns>:changes`` has one for each list: ``renamed NEW`` until its messages have been moved, ``moved NEW`` after
that, so that late messages are moved, too; ``removed`` until the list was found empty, or deleted. Besides ``begun
NEW`` for an output that all instances have begun to fill at one instant: it can be back-filled.
"""

from typing import Final

from penstock.base.keys import Keys

REMOVED: Final = "removed"


def key_of(namespace: str) -> str:
    """Return the key of the hash with the notes of ``namespace``."""
    return Keys(namespace).changes


def renamed(name: str) -> str:
    return f"renamed {name}"


def moved(name: str) -> str:
    return f"moved {name}"


def begun(name: str) -> str:
    """Return the field for an output that all instances have begun to fill at one instant."""
    return f"begun {name}"


def target(note: str) -> str | None:
    """Return the new name of the list; None if it was removed."""
    state, _, name = note.partition(" ")
    return name if state in ("renamed", "moved") else None


def is_moved(note: str) -> bool:
    return note.startswith("moved ")
