"""Dead letters put back where they came from, or removed for good; each once, whoever does it at the same time."""

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis

from penstock.encoding import encoded
from penstock.keys import Keys
from penstock.raw_connection import Word
from penstock.script import LUA, Script
from penstock.tracking.dead_letters import Letter, LetterFilter, next_chunk_size, read_letters
from penstock.tracking.policy import Policy

_revive, _bury = (Script.read(LUA / f"{verb}.lua") for verb in ("revive", "bury"))


@dataclass
class RedriveResult:
    """What became of the letters that were chosen."""

    moved: Counter[str] = field(default_factory=Counter)
    """By destination; a letter that was buried has none: the empty text."""
    ids: set[str] = field(default_factory=set)
    """Of the letters that were moved, or could not be."""
    left: Counter[str] = field(default_factory=Counter)
    """Those that stay, by a destination that is no list; the empty text where a letter does not say where to."""


Move = Callable[[int, int, list[Letter]], Awaitable[list[int]]]
"""Moves letters (oldest first) found behind the offset within the window: 1 moved, 0 not there, -1 it has to stay."""


async def revive(
    redis: "Redis", keys: Keys, choice: LetterFilter, outcome: RedriveResult, seen: Callable[[int], None]
) -> None:
    """Put the messages of chosen letters back, oldest first, each letter at most once whoever does it at the same time.

    ``outcome`` tells what was done, also where an error ends it; ``seen`` is called with the number of letters read.
    """
    named = await _named(redis, keys, "revived")

    async def act(offset: int, window: int, letters: list[Letter]) -> list[int]:
        able = [letter for letter in letters if letter.message is not None and letter.destination]
        places = {name: place for place, name in enumerate(dict.fromkeys(_to(letter) for letter in able), start=1)}
        words: list[Word] = []
        for letter in able:
            words += [letter.raw, letter.message or b"", places[_to(letter)], *_event(letter)]
        replies = await _revive(
            redis, **named, destinations=list(map(encoded, places)), offset=offset, window=window, letters=words
        ) if able else []  # fmt: skip
        found = dict(zip(map(id, able), replies, strict=True))
        return [found.get(id(letter), -1) for letter in letters]

    await _sweep(redis, keys, choice, act, _to, outcome, seen)


async def bury(
    redis: "Redis", keys: Keys, choice: LetterFilter, outcome: RedriveResult, seen: Callable[[int], None]
) -> None:
    """Remove chosen letters for good; as ``revive`` otherwise."""
    named = await _named(redis, keys, "buried")

    async def act(offset: int, window: int, letters: list[Letter]) -> list[int]:
        words: list[Word] = [word for letter in letters for word in (letter.raw, *_event(letter))]
        replies: list[int] = await _bury(redis, **named, offset=offset, window=window, letters=words)
        return replies

    await _sweep(redis, keys, choice, act, lambda _: "", outcome, seen)


async def _named(redis: "Redis", keys: Keys, metric: str) -> dict[str, Any]:
    policy = await Policy.read(redis, keys)
    return {
        "dead": encoded(keys.dead),
        metric: encoded(keys.metric(metric)),
        **{name: encoded(key) for name, key in keys.event_keys.items()},
        "mark": secrets.token_hex(16),
        "history": policy.history if policy else 0,
    }


def _to(letter: Letter) -> str:
    return (letter.destination or "") if letter.message is not None else ""


def _event(letter: Letter) -> tuple[bytes, bytes, str]:
    if not letter.tracked:
        return b"", b"", ""
    return encoded(letter.id), encoded(letter.text("xid")), letter.text("attempts")


async def _sweep(
    redis: "Redis",
    keys: Keys,
    choice: LetterFilter,
    act: Move,
    to: Callable[[Letter], str],
    outcome: RedriveResult,
    seen: Callable[[int], None],
) -> None:
    """From the oldest letter to the newest: what is removed there moves no other letter further from the tail.

    Where somebody else removes letters at the same time, so that the last letter kept is not where it was, it begins
    again: letters that were not read yet may be among those that were.
    """
    offset, kept, most = 0, b"", 50
    while True:
        chunk = await read_letters(redis, keys, -offset - most, -max(offset, 1))
        if offset and (not chunk or chunk.pop() != kept):
            offset = 0
            outcome.left.clear()
            continue
        if not chunk:
            return
        letters = [Letter(raw) for raw in reversed(chunk)]
        chosen = [letter for letter in letters if choice(letter)]
        results = await act(offset, len(chunk), chosen) if chosen else []
        gone = set[int]()
        for letter, result in zip(chosen, results, strict=True):
            if result:
                outcome.ids.add(letter.id)
                (outcome.moved if result > 0 else outcome.left)[to(letter)] += 1
            if result >= 0:
                gone.add(id(letter))
        seen(len(chunk))
        stay = [letter for letter in letters if id(letter) not in gone]
        offset, kept, most = offset + len(stay), stay[-1].raw if stay else kept, next_chunk_size(chunk)
