"""Of copies that disagree, which is right: decided by how many there ought to be in each list, where that can decide.

Several lists get the same messages. Of some message they have had unlike numbers of copies, its *pattern*: ``(1, 0)``
may mean that the second list lacks one, or that the first one has one too many. For each list it is known how many it
has had too many in all, or too few; how often each pattern means what, follows from equations of whole numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Pattern = tuple[int, ...]
"""How many copies of a message each of the lists has had."""

ROUNDS: Final = 100
"""How often bounds are narrowed at most; what is known by then is true, if perhaps not all that could be known."""


@dataclass(frozen=True)
class Balance:
    """Of one list."""

    over: int
    """Copies too many, as the counters have it; below 0 too few."""
    excused: int
    """Copies that it may lack and that are accounted for, nobody knows by which name; at most."""


@dataclass
class _Equation:
    """A sum of ``factor * variable`` is ``total``."""

    factors: dict[int, int]
    total: int


def expected(patterns: Mapping[Pattern, int], lists: Sequence[Balance]) -> dict[Pattern, int | None]:
    """How many copies there ought to be of the messages of each pattern; None where the sums do not decide.

    ``patterns``: how many messages there are of each. That a message which only some lists have had was owed to none,
    but put there by somebody, is believed only where the sums leave nothing else.
    """
    for least in (1, 0):
        if (found := _solved(patterns, lists, least)) is not None:
            return found
    return dict.fromkeys(patterns)


def _solved(patterns: Mapping[Pattern, int], lists: Sequence[Balance], least: int) -> dict[Pattern, int | None] | None:
    """None where there is no solution."""
    cases = [(pattern, copies) for pattern in patterns for copies in sorted(set(pattern)) if copies >= least]
    high = [patterns[pattern] for pattern, _ in cases]
    equations = [
        _Equation({number: 1 for number, (of, _) in enumerate(cases) if of == pattern}, messages)
        for pattern, messages in patterns.items()
    ]
    for place, balance in enumerate(lists):
        factors = {number: pattern[place] - copies for number, (pattern, copies) in enumerate(cases)}
        # Beside what the patterns show: copies that are excused, and copies that no list has had.
        factors |= {len(high): 1, len(high) + 1: -1}
        high += [balance.excused, max(-balance.over, 0)]
        equations.append(_Equation({number: by for number, by in factors.items() if by}, balance.over))
    low = [0] * len(high)
    if not _narrow(equations, low, high):
        return None
    sure = {pattern: copies for number, (pattern, copies) in enumerate(cases) if low[number] == patterns[pattern]}
    return {pattern: sure.get(pattern) for pattern in patterns}


def _narrow(equations: Sequence[_Equation], low: list[int], high: list[int]) -> bool:
    """Bring the bounds of all variables together; false where that leaves one without a value."""
    for _ in range(ROUNDS):
        before = [*low, *high]
        for equation in equations:
            ends = {number: _ends(by, low[number], high[number]) for number, by in equation.factors.items()}
            smallest, largest = (sum(end[side] for end in ends.values()) for side in (0, 1))
            for number, by in equation.factors.items():
                least, most = equation.total - largest + ends[number][1], equation.total - smallest + ends[number][0]
                start, end = (least, most) if by > 0 else (-most, -least)
                low[number] = max(low[number], -(-start // abs(by)))
                high[number] = min(high[number], end // abs(by))
                if low[number] > high[number]:
                    return False
        if before == [*low, *high]:
            break
    return True


def _ends(by: int, low: int, high: int) -> tuple[int, int]:
    return (by * low, by * high) if by > 0 else (by * high, by * low)
