"""What a service holds in its pending lists, counted as it comes: see docs/keys.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from redis.exceptions import NoScriptError

from penstock.keys import Keys
from penstock.raw_connection import pack
from penstock.script import Script

_note: Final = Script.read(Path(__file__).parent / "lua" / "note.lua")


def counters(keys: Keys | None, *, totals: bool = True) -> dict[str, str]:
    """Return the keys of ``lua/parts/held.lua``; none for a service without a namespace.

    Without ``totals`` messages are held, but not counted among those that the service has taken.
    """
    if keys is None:
        return {}
    held = {"holds": keys.held, "missing": keys.metric("missing")}
    return held | ({"taken": keys.metric("taken")} if totals else {})


class Counting:
    """The command that counts what has come to a pending list, sent behind the wait that may move it there."""

    def __init__(self, pending: str, named: Mapping[str, str]) -> None:
        self._source, self._digest = (
            pack([call(pending=pending, **named)]) for call in (_note.by_source, _note.by_digest)
        )
        self._known = False

    @property
    def packed(self) -> bytes:
        """By the script's digest once the server has it. If it has lost it, the next script counts the message."""
        return self._digest if self._known else self._source

    def answered(self, reply: object) -> None:
        """Note what the server said; an error is one that the next script meets, too."""
        self._known = not isinstance(reply, NoScriptError)


def counting(pending: str, named: Mapping[str, str]) -> Counting | None:
    """Return None without counters."""
    return Counting(pending, named) if named else None
