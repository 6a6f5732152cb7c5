"""Redrive dead letters to their source, or delete them; each letter once, also with concurrent callers."""

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from penstock import transfer
from penstock.base.encoding import encoded
from penstock.base.keys import Keys
from penstock.core.raw_connection import Word
from penstock.core.script import Script
from penstock.tracking import LUA
from penstock.tracking.dead_letters import MAX_CHUNK_BYTES, MAX_CHUNK_LETTERS, Letter, LetterFilter
from penstock.tracking.policy import Policy

_revive, _bury = (Script.read(LUA / f"{verb}.lua") for verb in ("revive", "bury"))
_read = Script.read(transfer.LUA / "read.lua")


@dataclass
class RedriveResult:
    """What became of the chosen letters."""

    moved: Counter[str] = field(default_factory=Counter)
    """Number by destination; buried letters count as the empty text."""
    ids: set[str] = field(default_factory=set)
    """Ids of the letters that were moved, or could not be."""
    left: Counter[str] = field(default_factory=Counter)
    """Number of letters that stay, by a destination that is not a list; the empty text if a letter names none."""


Move = Callable[[int, int, list[Letter]], Awaitable[list[int]]]
"""Move letters (oldest first) within the window behind the offset: 1 moved, 0 not there, -1 it has to stay."""


async def revive(
    redis: "Redis", keys: Keys, wanted: LetterFilter, result: RedriveResult, on_read: Callable[[int], None]
) -> None:
    """Return the messages of chosen letters to their source, oldest first; each once, also with concurrent callers.

    ``result`` is kept up to date, also if an error ends it. ``on_read`` is called with the number of letters read.
    """
    arguments = await _arguments(redis, keys, "revived")

    async def move(offset: int, window: int, letters: list[Letter]) -> list[int]:
        able = [letter for letter in letters if letter.message is not None and letter.destination]
        names = dict.fromkeys(map(_destination, able))
        places = {name: place for place, name in enumerate(names, start=1)}
        words: list[Word] = []
        for letter in able:
            words += [letter.raw, letter.message or b"", places[_destination(letter)], *_event(letter)]
        replies = await _revive(
            redis, **arguments, destinations=list(map(encoded, places)), offset=offset, window=window, letters=words
        ) if able else []  # fmt: skip
        found = dict(zip(map(id, able), replies, strict=True))
        return [found.get(id(letter), -1) for letter in letters]

    await _move_all(redis, keys, wanted, move, _destination, result, on_read)


async def bury(
    redis: "Redis", keys: Keys, wanted: LetterFilter, result: RedriveResult, on_read: Callable[[int], None]
) -> None:
    """Delete chosen letters; otherwise as ``revive``."""
    arguments = await _arguments(redis, keys, "buried")

    async def move(offset: int, window: int, letters: list[Letter]) -> list[int]:
        words: list[Word] = [word for letter in letters for word in (letter.raw, *_event(letter))]
        replies: list[int] = await _bury(redis, **arguments, offset=offset, window=window, letters=words)
        return replies

    await _move_all(redis, keys, wanted, move, lambda _: "", result, on_read)


async def _arguments(redis: "Redis", keys: Keys, metric: str) -> dict[str, Any]:
    policy = await Policy.read(redis, keys)
    return {
        "dead": encoded(keys.dead),
        metric: encoded(keys.metric(metric)),
        **{name: encoded(key) for name, key in keys.event_keys.items()},
        "mark": secrets.token_hex(16),
        "history": policy.history if policy else 0,
    }


def _destination(letter: Letter) -> str:
    return (letter.destination or "") if letter.message is not None else ""


def _event(letter: Letter) -> tuple[bytes, bytes, str]:
    if not letter.tracked:
        return b"", b"", ""
    return encoded(letter.id), encoded(letter.text("xid")), letter.text("attempts")


async def _move_all(
    redis: "Redis",
    keys: Keys,
    wanted: LetterFilter,
    move: Move,
    destination_of: Callable[[Letter], str],
    result: RedriveResult,
    on_read: Callable[[int], None],
) -> None:
    """Go from the oldest letter to the newest: removing them moves no other letter further from the tail.

    Begin again if somebody else removes letters meanwhile, so that the last letter kept is not in its place: letters
    that were not read yet may be among those that were.
    """
    offset, kept = 0, b""
    bounds = {"batch": MAX_CHUNK_LETTERS, "bytes": MAX_CHUNK_BYTES, "unseen": MAX_CHUNK_LETTERS, "largest": 0}
    while True:
        known = min(offset, 1)  # the last letter kept
        chunk: list[bytes] = await _read(redis, source=encoded(keys.dead), older=offset - known, known=known, **bounds)
        if known and (not chunk or chunk.pop(0) != kept):
            offset = 0
            result.left.clear()
            continue
        if not chunk:
            return
        letters = [Letter(raw) for raw in chunk]
        chosen = [letter for letter in letters if wanted(letter)]
        replies = await move(offset, len(chunk), chosen) if chosen else []
        gone = set[int]()
        for letter, reply in zip(chosen, replies, strict=True):
            if reply:
                result.ids.add(letter.id)
                (result.moved if reply > 0 else result.left)[destination_of(letter)] += 1
            if reply >= 0:
                gone.add(id(letter))
        on_read(len(chunk))
        stay = [letter for letter in letters if id(letter) not in gone]
        offset, kept = offset + len(stay), stay[-1].raw if stay else kept
