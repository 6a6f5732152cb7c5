"""Count what a service holds in its pending lists, from the moment it arrives: see docs/keys.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from redis.exceptions import NoScriptError

from penstock.base.keys import Keys
from penstock.core.raw_connection import pack
from penstock.core.script import Script

_note: Final = Script.read(Path(__file__).parent / "lua" / "note.lua")


def counters(keys: Keys | None, *, totals: bool = True) -> dict[str, str]:
    """Return the keys of ``lua/parts/held.lua``; an empty dict for a service without a namespace.

    Without ``totals``, count messages as held, but not as taken by the service.
    """
    if keys is None:
        return {}
    held = {"holds": keys.held, "missing": keys.metric("missing")}
    return held | ({"taken": keys.metric("taken")} if totals else {})


class ArrivalCounter:
    """The command that counts arrivals in a pending list; send it behind the wait that may move one there."""

    def __init__(self, pending: str, named: Mapping[str, str]) -> None:
        self._source, self._digest = (
            pack([call(pending=pending, **named)]) for call in (_note.by_source, _note.by_digest)
        )
        self._known = False

    @property
    def packed(self) -> bytes:
        """Return the call, by digest once the server has the script. If it lost it, the next script counts."""
        return self._digest if self._known else self._source

    def answered(self, reply: object) -> None:
        """Note the server's reply; ignore an error, which the next script meets, too."""
        self._known = not isinstance(reply, NoScriptError)


def counting(pending: str, named: Mapping[str, str]) -> ArrivalCounter | None:
    """Return the command for the counters ``named``, or None if there are none."""
    return ArrivalCounter(pending, named) if named else None
