"""What a service holds in its pending lists, counted as it comes: see docs/keys.md."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from penstock.keys import Keys
from penstock.lua import Script
from penstock.wire import pack

_note: Final = Script.read(Path(__file__).parent / "lua" / "note.lua")


def counters(keys: Keys | None, *, totals: bool = True) -> dict[str, str]:
    """Return the keys of ``lua/parts/held.lua``; none for a service without a namespace.

    Without ``totals`` messages are held, but not counted among those that the service has taken.
    """
    if keys is None:
        return {}
    held = {"holds": keys.held, "missing": keys.metric("missing")}
    return held | ({"taken": keys.metric("taken")} if totals else {})


def counting(pending: str, named: Mapping[str, str]) -> bytes:
    """Return the command that counts what has come to ``pending``, packed, or nothing without counters."""
    return _packed(pending, tuple(named.items())) if named else b""


@lru_cache(64)
def _packed(pending: str, named: tuple[tuple[str, str], ...]) -> bytes:
    return pack([_note.by_source(pending=pending, **dict(named))])
