"""Samples of a running composition, and the rates, ages and trends that follow from several of them."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise, takewhile
from typing import Any, Final

from penstock.base.shape import Place
from penstock.composition.draw.sketch import redelivers
from penstock.composition.model import Composition, Part
from penstock.inspect.waiting import Waiting

MAX_SAMPLES: Final = 600
"""How many samples are kept, which limits the age of a message that can be determined."""
MIN_INCREASES: Final = 3
"""A list piles up if it grew this often within the last ``GROWTH_SAMPLES`` samples and has not shrunk since."""
GROWTH_SAMPLES: Final = 10
RATE_SAMPLES: Final = 5
"""How many samples a rate is computed from."""


@dataclass(frozen=True)
class ServiceCounts:
    """A service at one moment."""

    pending: int
    taken: int
    delivered: Mapping[str, int]
    """Messages by list, retries included."""


@dataclass(frozen=True)
class InstanceCounts:
    """The instances of a service at one moment."""

    alive: int
    late: int = 0
    """Instances that missed a heartbeat; they are not counted in ``alive``."""
    waits: Sequence[str] = ()
    """What live instances wait for, in words."""


@dataclass
class Sample:
    """All servers at about one time: ``at`` (s, monotonic clock), ``when`` (s since the epoch)."""

    at: float
    when: float = 0
    lengths: dict[Place, int] = field(default_factory=dict)
    """Lists on unreachable servers and keys of another type are left out."""
    arrived: dict[Place, int] = field(default_factory=dict)
    """Messages that ever arrived in a list, up to a constant; only lists whose writers or readers count."""
    oldest: dict[Place, float] = field(default_factory=dict)
    """Ages (s) of the oldest dead letters and events, from the timestamps in them."""
    services: dict[str, ServiceCounts] = field(default_factory=dict)
    """By namespace."""
    instances: dict[str, InstanceCounts] = field(default_factory=dict)
    """By namespace, from the server of its registrations."""
    queues: list[Waiting] = field(default_factory=list)
    """Lists, streams and queues of programs that are used."""
    unreachable: dict[str, str] = field(default_factory=dict)
    """Reasons by server."""


@dataclass(frozen=True)
class ListStats:
    """A list; None if a value is not known. Rates are messages a second."""

    length: int | None = None
    arriving: float | None = None
    leaving: float | None = None
    growth: float | None = None
    """Change of the length; negative if the list shrinks."""
    oldest: float | None = None
    """Seconds that the oldest message has waited."""
    at_least: bool = False
    """True if ``oldest`` is a lower bound: the message was there before the first sample."""
    piles_up: bool = False


class Samples:
    """The last ``MAX_SAMPLES`` samples of a composition; ``composition`` is that of the last one."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self.composition = Composition(())

    def add(self, composition: Composition, sample: Sample) -> None:
        self.composition = composition
        counted = {place: _count_arrived(composition, sample, place) for place in sample.lengths}
        sample.arrived |= {place: count for place, count in counted.items() if count is not None}
        self._samples.append(sample)

    @property
    def last(self) -> Sample:
        return self._samples[-1]

    def stats(self, place: Place) -> ListStats:
        """Return the rates, the growth and the age of a list; all None if the last sample does not have it."""
        last = self.last
        length = last.lengths.get(place)
        if length is None:
            return ListStats()
        samples = [sample for sample in self._samples if place in sample.arrived]
        arrived = [(sample.at, sample.arrived[place]) for sample in samples]
        left = [(sample.at, sample.arrived[place] - sample.lengths[place]) for sample in samples]
        oldest, at_least = last.oldest.get(place), False
        if oldest is None and length and place in last.arrived:
            oldest, at_least = _age(arrived, length, last.at)
        growth = _slope([(sample.at, sample.lengths[place]) for sample in self._samples if place in sample.lengths])
        return ListStats(length, _rate(arrived), _rate(left), growth, oldest, at_least, self._grows(place))

    def service_as_json(self, namespace: str | None) -> dict[str, Any]:
        """Return the counts and the rate of a service, without what the last sample does not have."""
        name = namespace or ""
        found = [each for each in (self.last.instances.get(name), self.last.services.get(name)) if each]
        rate = {"rate": self.taken_per_second(name)} if name in self.last.services else {}
        return {key: value for each in found for key, value in asdict(each).items()} | rate

    def taken_per_second(self, namespace: str) -> float | None:
        """Return the rate at which a service takes messages; None until there are two samples of it."""
        known = [sample for sample in self._samples if namespace in sample.services]
        return _rate([(sample.at, sample.services[namespace].taken) for sample in known])

    def _grows(self, place: Place) -> bool:
        recent = list(self._samples)[-GROWTH_SAMPLES:]
        lengths = [sample.lengths[place] for sample in recent if place in sample.lengths]
        steps = [after - before for before, after in pairwise(lengths)]
        since = takewhile(lambda step: step >= 0, reversed(steps))
        return sum(step > 0 for step in since) >= MIN_INCREASES


def _count_arrived(composition: Composition, sample: Sample, place: Place) -> int | None:
    """Count by the writers of the list, or by its readers; None if neither are all services that count."""
    writers = [part for part, _ in composition.at(place, "writes") if not redelivers(part)]
    if writers and all(part.namespace in sample.services for part in writers):
        return sum(sample.services[name].delivered.get(place.key, 0) for name in _names(writers))
    readers = [part for part, end in composition.at(place, "reads") if end.role == "in"]
    if readers and all(part.namespace in sample.services for part in readers):
        held = [sample.services[name] for name in _names(readers)]
        return sample.lengths[place] + sum(one.taken + one.pending for one in held)
    return None


def _names(parts: Iterable[Part]) -> set[str]:
    return {str(part.namespace) for part in parts}


def _rate(counts: Sequence[tuple[float, int]]) -> float | None:
    """Return the rate of a counter; 0 if it was reset."""
    slope = _slope(counts)
    return None if slope is None else max(0.0, slope)


def _slope(numbers: Sequence[tuple[float, int]]) -> float | None:
    """Return the change a second over the last ``RATE_SAMPLES``; None until there are two."""
    recent = numbers[-RATE_SAMPLES:]
    if len(recent) < 2 or recent[-1][0] <= recent[0][0]:
        return None
    return (recent[-1][1] - recent[0][1]) / (recent[-1][0] - recent[0][0])


def _age(arrived: Sequence[tuple[float, int]], length: int, now: float) -> tuple[float, bool]:
    """Return how long (s) the oldest of ``length`` messages has waited, and True if that is a lower bound.

    It is the first message that has not left: it arrived just before the first sample that counted it.
    """
    left = arrived[-1][1] - length
    at = next((at for at, count in arrived if count > left), now)
    return now - at, at == arrived[0][0]
