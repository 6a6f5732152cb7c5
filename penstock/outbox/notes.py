"""What a program that moves messages into an outbox has to know after a crash: a note, written with the messages."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.outbox.store import Published, Store

PREFIX: Final = "note:"


class Noted(NamedTuple):
    """Messages of a source, and its note once they are stored."""

    source: str
    note: str
    messages: Sequence[Published]


def publish_noted(store: Store, noted: Sequence[Noted]) -> None:
    for source, note, messages in noted:
        store.publish(messages)
        store.put(PREFIX + source, note)


def note_of(store: Store, source: str) -> str | None:
    row = store.connection.execute("SELECT value FROM meta WHERE name = ?", (PREFIX + source,)).fetchone()
    return None if row is None else str(row[0])


__all__ = ["Noted", "note_of", "publish_noted"]
