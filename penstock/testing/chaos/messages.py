"""The accounts of a chaos run: the messages pushed for each fault, and those that came out."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.base.errors import PenstockError
from penstock.base.shape import Place, Promise
from penstock.composition.model import ID_HERE, Composition

ID: Final = re.compile(rb"penstock-chaos-(\d+)-(\d+)")

LEADS_TO: Final = {"in": "out", "answers": "replies"}
"""Where a part moves what it takes from a list, by the role of that list."""


@dataclass(frozen=True)
class Sink:
    """A list where messages come out. ``promise`` and ``ordered`` are the weakest of all parts on the way there."""

    place: Place
    promise: Promise
    ordered: bool
    again: float
    """Seconds until a message is redelivered, at most; 0 if no part on the way does that."""

    def weakened(self, other: "Sink") -> "Sink":
        promise: Promise = "once" if self.promise == other.promise == "once" else "at-least-once"
        return Sink(self.place, promise, self.ordered and other.ordered, max(self.again, other.again))


@dataclass(frozen=True)
class Routes:
    """The sinks that every message must reach, by the list to which it is pushed."""

    sinks: Mapping[Place, tuple[Sink, ...]]

    @classmethod
    def of(cls, composition: Composition) -> "Routes":
        """Return the routes of ``composition``. Raise ``PenstockError`` if it does not tell them."""
        ends = {end.place.key: end.place for _, end in composition.ends("reads", "writes")}
        chosen = {name for name in (*composition.chaos.into, *composition.chaos.out) if name not in ends}
        if chosen:
            raise PenstockError(
                f"{composition.declared}: chaos: {', '.join(sorted(chosen))}: no part of the composition reads or "
                f"writes it; expected one of {', '.join(sorted(ends))}"
            )
        sources = [ends[name] for name in composition.chaos.into] or [
            end.place for end in composition.sources() if _begins(composition, end.place)
        ]
        wanted = {ends[name] for name in composition.chaos.out} or {end.place for end in composition.sinks()}
        sinks = {source: tuple(_reached(composition, source, wanted)) for source in sources}
        if not any(sinks.values()):
            raise PenstockError(
                f"{composition.directory}: no list is pushed to whose messages come out at another; say in "
                "composition.yaml what programs read and write, or name the lists under chaos: into, out"
            )
        return cls({source: reached for source, reached in sinks.items() if reached})

    @property
    def places(self) -> list[Place]:
        """Return the lists of all sinks, each once."""
        return sorted({sink.place for sinks in self.sinks.values() for sink in sinks})


@dataclass
class Account:
    """The messages of one fault, by number from 0: those pushed to each list, and those that arrived at each sink."""

    pushed: dict[Place, list[int]] = field(default_factory=lambda: defaultdict(list))
    arrived: dict[Place, list[int]] = field(default_factory=lambda: defaultdict(list))

    def owed(self, routes: Routes, times: Mapping[tuple[Place, Place], int]) -> int:
        """Return the number of copies that have not arrived."""
        return sum(sum(missing.values()) for _, missing in self._missing(routes, times))

    def lost(self, routes: Routes, times: Mapping[tuple[Place, Place], int]) -> list[tuple[Place, int]]:
        """Return sink and number of each missing copy."""
        return [(place, number) for place, missing in self._missing(routes, times) for number in missing.elements()]

    def doubled(self, routes: Routes, times: Mapping[tuple[Place, Place], int], *, broken: bool = False) -> int:
        """Return the number of surplus copies; with ``broken``, only at sinks that promise exactly once."""
        total = 0
        for source, numbers in self.pushed.items():
            for sink in routes.sinks[source]:
                if broken and sink.promise != "once":
                    continue
                counts, wanted = Counter(self.arrived[sink.place]), times.get((source, sink.place), 1)
                total += sum(max(counts[number] - wanted, 0) for number in numbers)
        return total

    def reordered(self, routes: Routes, *, broken: bool = False) -> int:
        """Return the number of messages overtaken by a later one; with ``broken``, only at sinks that promise order."""
        total = 0
        for source, numbers in self.pushed.items():
            for sink in routes.sinks[source]:
                if not broken or sink.ordered:
                    ours = set(numbers)
                    total += _behind(number for number in self.arrived[sink.place] if number in ours)
        return total

    def _missing(
        self, routes: Routes, times: Mapping[tuple[Place, Place], int]
    ) -> Iterable[tuple[Place, Counter[int]]]:
        for source, numbers in self.pushed.items():
            for sink in routes.sinks[source]:
                wanted = times.get((source, sink.place), 1)
                yield sink.place, Counter(dict.fromkeys(numbers, wanted)) - Counter(self.arrived[sink.place])


def message(template: str, account: int, number: int) -> str:
    """Return ``template`` with the id of a message, by which ``recognised`` finds it in any output."""
    return template.replace(ID_HERE, f"penstock-chaos-{account:05d}-{number:04d}")


def recognised(entry: bytes) -> tuple[int, int] | None:
    """Return account and number of the message in ``entry``, or None if it has no id of a chaos run."""
    found = ID.search(entry)
    return (int(found[1]), int(found[2])) if found else None


def _begins(composition: Composition, place: Place) -> bool:
    """Return True if outsiders push to this list, or if the composition names no list that they push to."""
    declared = composition.external.writes
    return not declared or composition.external.does("writes", place.key)


def _reached(composition: Composition, source: Place, wanted: set[Place]) -> Iterable[Sink]:
    """Yield the wanted sinks that messages from ``source`` reach; each way to a sink may weaken its promise."""
    ways: dict[Place, Sink] = {source: Sink(source, "once", True, 0)}
    frontier = [source]
    while frontier:
        way = ways[frontier.pop()]
        for part, taken in composition.at(way.place, "reads"):
            role = LEADS_TO.get(taken.role)
            ordered = way.ordered and part.ordered
            promise: Promise = "once" if way.promise == part.promise == "once" else "at-least-once"
            for end in part.using("writes"):
                if end.kind == "list" and end.role == role and end.place != source:
                    found = Sink(end.place, promise, ordered, max(way.again, part.again))
                    known = ways.get(end.place)
                    ways[end.place] = found.weakened(known) if known else found
                    if ways[end.place] != known:
                        frontier.append(end.place)
    return [sink for place, sink in ways.items() if place in wanted and place != source]


def _behind(numbers: Iterable[int]) -> int:
    count, highest, seen = 0, -1, set[int]()
    for number in numbers:
        if number not in seen:
            seen.add(number)
            count += number < highest
            highest = max(highest, number)
    return count
