"""The plan of a chaos run: the processes that take part, the faults to inject, and their expected duration."""

import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.base.errors import PenstockError
from penstock.composition.model import Composition
from penstock.testing.chaos.faults import NO_FAULT, Injection
from penstock.testing.chaos.injection import Kind
from penstock.testing.chaos.lane import fed_lists
from penstock.testing.chaos.points import Phase, Point
from penstock.testing.chaos.random_faults import FAULTS, PAIRED, WRONG_TYPE

DEFAULT_ROUNDS: Final = 1
"""How often each random fault happens."""
FAULT_NAMES: Final = frozenset(name.lower() for name in (NO_FAULT, *(kind.value for kind in Kind), *FAULTS))
LANES_PER_CORE: Final = 4
"""A lane waits most of the time."""
PHASE_SECONDS: Final = {Phase.START: 1.2, Phase.FLOW: 2.3, Phase.RECOVER: 1.7, Phase.STOP: 1.5}
"""Duration of a fault at a point, measured with the compositions of `compose/`; 0.4 s for a program in the flow."""
RANDOM_FAULT_SECONDS: Final = 1.5
SILENT_FAULT_SECONDS: Final = 12.0
"""Duration of a fault that silences a connection."""


@dataclass(frozen=True)
class Chosen:
    """The user's choice among all faults."""

    seed: int
    faults: Sequence[str] = ()
    """Names of faults, or parts of names; empty for all."""
    process: str | None = None
    point: str | None = None
    """Part of a point's name."""
    rounds: int = DEFAULT_ROUNDS
    lanes: int | None = None
    """Compositions that run side by side; by default ``LANES_PER_CORE`` for each core."""
    sample: int | None = None
    """Number of faults to inject, drawn by ``seed`` beside the run without a fault; None for all."""

    def has(self, injection: Injection) -> bool:
        if self.faults and not any(_names(word.lower(), injection.fault.lower()) for word in self.faults):
            return False
        if injection.point is None:
            return self.point is None
        if self.process not in (None, injection.point.process):
            return False
        return self.point is None or self.point in str(injection.point)

    def lane_count(self, injections: Sequence[Injection]) -> int:
        """Return how many compositions run side by side."""
        return min(self.lanes or LANES_PER_CORE * (os.cpu_count() or 1), len(injections))

    def check(self, composition: Composition) -> None:
        """Raise ``PenstockError`` if a fault or a process is chosen that does not exist."""
        known = [NO_FAULT, *(kind.value for kind in Kind), *FAULTS]
        for single in (single for word in self.faults for single in word.split(" + ")):
            if not any(single.lower() in name.lower() for name in known):
                raise PenstockError(f"no fault is called {single!r}: expected part of {', '.join(known)}")
        names = [part.name for part in composition.parts]
        if self.process not in (None, *names):
            raise PenstockError(f"no process is called {self.process!r}: expected one of {', '.join(names)}")


def taking_part(composition: Composition) -> tuple[Composition, list[str]]:
    """Return the composition with the parts that are started, and one line for each reason to leave others out.

    Raise ``PenstockError`` if composition.yaml leaves out what does not exist.
    """
    without = composition.chaos.without
    names = [part.name for part in composition.parts]
    unknown = [name for name in without if name not in names]
    if unknown:
        raise PenstockError(
            f"{composition.declared}: chaos.without: no process is called {unknown[0]!r}: expected {', '.join(names)}"
        )
    started = tuple(part for part in composition.parts if part.command and part.name not in without)
    if not started:
        return composition, []  # the sandbox reports what is missing
    idle = [part.name for part in composition.parts if not part.command]
    lines = [f"left out, as no process runs it: {', '.join(idle)}"] if idle else []
    lines += [f"left out, as composition.yaml says: {', '.join(without)}"] if without else []
    return replace(composition, parts=started), lines


def planned(composition: Composition, points: Sequence[Point], chosen: Chosen) -> list[Injection]:
    """Return the chosen faults: one round without a fault, every kind at every point, and random ones."""
    plain, *faults = _all(composition, points, chosen)
    faults = [each for each in faults if chosen.has(each)]
    if chosen.sample is not None and chosen.sample < len(faults):
        drawn = set(random.Random(chosen.seed).sample(range(len(faults)), chosen.sample))
        faults = [each for place, each in enumerate(faults) if place in drawn]
    return [plain, *faults] if chosen.has(plain) else faults


def expected(composition: Composition, injections: Sequence[Injection], lanes: int) -> float:
    """Return about how many seconds the faults will take: side by side, but no less than the slowest."""
    services = {part.name for part in composition.parts if part.service}
    costs = [_cost(each, services) for each in injections]
    return max(sum(costs) / max(lanes, 1), *costs)


def _cost(injection: Injection, services: set[str]) -> float:
    if injection.point is None:
        return SILENT_FAULT_SECONDS if injection.slow else RANDOM_FAULT_SECONDS
    phase = Phase(injection.point.phase)
    return 0.4 if phase is Phase.FLOW and injection.point.process not in services else PHASE_SECONDS[phase]


def _all(composition: Composition, points: Sequence[Point], chosen: Chosen) -> Iterable[Injection]:
    yield Injection(1, NO_FAULT)
    number = 1
    for point in points:
        for kind in Kind:
            number += 1
            yield Injection(number, kind.value, point, kind)
    pair = random.Random(chosen.seed)
    alone = [fault for fault in FAULTS if fault != WRONG_TYPE or fed_lists(composition)]
    for turn in range(chosen.rounds):
        two = " + ".join(pair.sample(PAIRED, 2))
        for fault in (*alone, two):
            number += 1
            yield Injection(number, fault, None, None, f"{chosen.seed}:{fault}:{turn}", chosen.process)


def _names(word: str, fault: str) -> bool:
    """Return True if ``word`` is the name of ``fault``, or part of it and not the whole name of another one."""
    return word == fault if word in FAULT_NAMES else word in fault
