"""What goes on in the lists of a composition: looks at its servers, and what several of them say together."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, takewhile
from typing import Any, Final

from penstock.composition.draw.sketch import gives_back
from penstock.composition.model import Part, Place, Topology

REMEMBERED: Final = 600
"""Looks that are kept: how far back the age of a message is known."""
GROWTH: Final = 3
"""Times that a list must have got longer in the last ``PILING`` looks, and not shorter since, for it to pile up."""
PILING: Final = 10
RECENT: Final = 5
"""Looks that a rate is taken over."""


@dataclass(frozen=True)
class Counted:
    """A service at one look."""

    alive: int
    pending: int
    taken: int
    delivered: Mapping[str, int]
    """By list, retries included."""
    late: int = 0
    """Instances that have missed a renewal; the others are ``alive``."""


@dataclass
class Look:
    """All servers at about one time: ``at`` (s, of a clock that does not jump), ``when`` (s since the epoch)."""

    at: float
    when: float = 0
    lengths: dict[Place, int] = field(default_factory=dict)
    """Without those that cannot be reached, or are no list."""
    arrived: dict[Place, int] = field(default_factory=dict)
    """How many messages have ever come to a list, but for a constant, where somebody counts them."""
    oldest: dict[Place, float] = field(default_factory=dict)
    """Ages (s) that the entries themselves tell: dead letters and events."""
    services: dict[str, Counted] = field(default_factory=dict)
    """By namespace."""
    silent: dict[str, str] = field(default_factory=dict)
    """Servers that did not answer, and why."""


@dataclass(frozen=True)
class Sight:
    """A list; None is what is not known. Rates are messages a second."""

    length: int | None = None
    arriving: float | None = None
    leaving: float | None = None
    growth: float | None = None
    """By how much the list gets longer; below 0 shorter."""
    oldest: float | None = None
    """Seconds that the oldest message has waited,"""
    at_least: bool = False
    """or more: it was there before the first look."""
    piles_up: bool = False


class Looks:
    """The last looks at ``topology``, which may be another one from look to look."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=REMEMBERED)
        self.topology = Topology(())

    def add(self, topology: Topology, look: Look) -> None:
        self.topology = topology
        counted = {place: _arrived(topology, look, place) for place in look.lengths}
        look.arrived |= {place: count for place, count in counted.items() if count is not None}
        self._looks.append(look)

    @property
    def last(self) -> Look:
        return self._looks[-1]

    def sight(self, place: Place) -> Sight:
        """What is known of a list by now."""
        last = self.last
        length = last.lengths.get(place)
        if length is None:
            return Sight()
        looks = [look for look in self._looks if place in look.arrived]
        arrived = [(look.at, look.arrived[place]) for look in looks]
        left = [(look.at, look.arrived[place] - look.lengths[place]) for look in looks]
        oldest, at_least = last.oldest.get(place), False
        if oldest is None and length and place in last.arrived:
            oldest, at_least = _age(arrived, length, last.at)
        growth = _slope([(look.at, look.lengths[place]) for look in self._looks if place in look.lengths])
        return Sight(length, _rate(arrived), _rate(left), growth, oldest, at_least, self._grows(place))

    def told(self, namespace: str | None) -> dict[str, Any]:
        """What is known of a service, for programs."""
        found = self.last.services.get(namespace or "")
        return {**asdict(found), "rate": self.taking(str(namespace))} if found else {}

    def taking(self, namespace: str) -> float | None:
        """Messages that a service takes a second."""
        counts = [(look.at, look.services[namespace].taken) for look in self._looks if namespace in look.services]
        return _rate(counts)

    def _grows(self, place: Place) -> bool:
        lengths = [look.lengths[place] for look in list(self._looks)[-PILING:] if place in look.lengths]
        steps = [after - before for before, after in pairwise(lengths)]
        since = takewhile(lambda step: step >= 0, reversed(steps))
        return sum(step > 0 for step in since) >= GROWTH


def _arrived(topology: Topology, look: Look, place: Place) -> int | None:
    """By those who write to the list, or by those who read it, whichever are all services that count."""
    writers = [part for part, _ in topology.at(place, "writes") if not gives_back(part)]
    if writers and all(part.namespace in look.services for part in writers):
        return sum(look.services[name].delivered.get(place.key, 0) for name in _names(writers))
    readers = [part for part, end in topology.at(place, "reads") if end.role == "in"]
    if readers and all(part.namespace in look.services for part in readers):
        held = [look.services[name] for name in _names(readers)]
        return look.lengths[place] + sum(one.taken + one.pending for one in held)
    return None


def _names(parts: Iterable[Part]) -> set[str]:
    return {str(part.namespace) for part in parts}


def _rate(counts: Sequence[tuple[float, int]]) -> float | None:
    """Of a counter, which does not go back but when somebody resets it."""
    slope = _slope(counts)
    return None if slope is None else max(0.0, slope)


def _slope(numbers: Sequence[tuple[float, int]]) -> float | None:
    """A second, over the last few looks; None until there are two."""
    recent = numbers[-RECENT:]
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return None
    return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


def _age(arrived: Sequence[tuple[float, int]], length: int, now: float) -> tuple[float, bool]:
    """How long (s) the oldest of ``length`` messages has waited, and whether it may be longer.

    It is the one after those that have left: it came between the first look that counted it and the one before.
    """
    left = arrived[-1][1] - length
    at = next((at for at, count in arrived if count > left), now)
    return now - at, at == arrived[0][0]
