"""Account of all messages by content: lost, doubled, out of order, gone; from lists alone, without counters."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.reliability.soak.chain import ARRIVED, DEAD, HERE, KEPT, THERE, Chain


@dataclass
class Pushed:
    """Messages pushed: ``accepted`` were confirmed in this order; for ``unsure`` the reply was lost."""

    accepted: list[bytes] = field(default_factory=list)
    unsure: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class Account:
    """Counts of messages; the first four must be 0."""

    accepted: int
    unsure: int
    lost: int
    doubled: int
    disordered: int
    gone: int
    foreign: int
    """Messages that arrived but were never pushed: a failure, too."""
    dead: int
    again: int
    """Repeated deliveries of tracked messages: allowed, as the guarantee is at-least-once."""
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return not (self.lost or self.doubled or self.disordered or self.gone or self.foreign)


def account(pushed: Pushed, arrived: Sequence[bytes], kept: Iterable[bytes], dead: Iterable[bytes]) -> Account:
    """Compare the pushed messages with those that arrived (oldest first), that workers kept, and dead letters."""
    owed, maybe, came = Counter(pushed.accepted), Counter(pushed.unsure), Counter(arrived)
    lost, surplus = owed - came, came - owed
    doubled, foreign = Counter[bytes](), Counter[bytes]()
    for message, many in (surplus - maybe).items():
        (doubled if owed[message] or maybe[message] else foreign)[message] = many
    disordered = out_of_order(pushed.accepted, arrived)
    kept_ones, letters = Counter(kept), Counter(dead)
    gone = owed - kept_ones - letters
    foreign += Counter({each: n for each, n in (kept_ones + letters).items() if not owed[each] and not maybe[each]})
    again = kept_ones + letters - owed - maybe
    found = {"lost": lost, "doubled": doubled, "gone": gone, "foreign": foreign, "out of order": Counter(disordered)}
    return Account(
        len(pushed.accepted),
        len(pushed.unsure),
        lost.total(),
        doubled.total(),
        len(disordered),
        gone.total(),
        foreign.total(),
        letters.total(),
        again.total(),
        {name: [repr(each[:60]) for each in list(those)[:5]] for name, those in found.items() if those},
    )


def out_of_order(accepted: Sequence[bytes], arrived: Sequence[bytes]) -> list[bytes]:
    """Return messages that arrived after one pushed later; ignore those pushed several times."""
    counts = Counter(accepted)
    places = {message: place for place, message in enumerate(accepted) if counts[message] == 1}
    found, highest, seen = [], -1, set[bytes]()
    for message in arrived:
        place = places.get(message)
        if place is None or message in seen:
            continue
        seen.add(message)
        if place < highest:
            found.append(message)
        highest = max(highest, place)
    return found


def read_account(chain: Chain, pushed: Pushed) -> Account:
    """Read the lists of both servers and account for the pushed messages."""
    with chain.connected(HERE) as here, chain.connected(THERE) as there:
        arrived = read_list(there, ARRIVED)[::-1]
        return account(pushed, arrived, read_list(here, KEPT), map(message_of, read_list(here, DEAD)))


def read_list(redis: Any, key: str) -> list[bytes]:
    """Return a whole list, newest first, read in chunks."""
    found: list[bytes] = []
    while chunk := redis.lrange(key, len(found), len(found) + 4_999):
        found += chunk
    return found


def message_of(letter: bytes) -> bytes:
    """Return the message of a dead letter as bytes."""
    text = letter.decode(errors="surrogateescape")
    return str(json.loads(text)["message"]).encode(errors="surrogateescape")
