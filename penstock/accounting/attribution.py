"""Decide which branches of a fan-out are wrong about a message, by interval propagation over their sums.

All branches get the same messages. The *pattern* of a message is the number of copies that each branch has had:
``(1, 0)`` means that the second branch lacks one, or that the first has one too many. For each branch, the counters say
how many copies it has too many or too few in total. These are linear equations in whole numbers; the unknowns are how
many messages of each pattern were owed how many copies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Pattern = tuple[int, ...]
"""How many copies of a message each branch has had."""

MAX_ROUNDS: Final = 100
"""Rounds of propagation. Bounds are valid after any number of rounds; more rounds may narrow them further."""


@dataclass(frozen=True)
class Balance:
    """The sums of one branch."""

    surplus: int
    """Copies too many, by the counters; negative: too few."""
    excused: int
    """Upper bound on copies that may be absent for known reasons, without a known name."""


@dataclass
class _Unknown:
    """A whole number between two bounds."""

    low: int
    high: int


@dataclass(frozen=True)
class _Equation:
    """The sum of ``factor * unknown`` over all terms equals ``total``."""

    terms: Sequence[tuple[int, _Unknown]]
    total: int

    def narrow(self) -> bool:
        """Narrow the bounds of each unknown by those of the others; return False if none of its values is left."""
        products = [sorted((factor * unknown.low, factor * unknown.high)) for factor, unknown in self.terms]
        lowest, highest = sum(low for low, _ in products), sum(high for _, high in products)
        for (factor, unknown), (low, high) in zip(self.terms, products, strict=True):
            least, most = self.total - (highest - high), self.total - (lowest - low)
            if factor < 0:
                least, most = -most, -least
            unknown.low = max(unknown.low, -(-least // abs(factor)))
            unknown.high = min(unknown.high, most // abs(factor))
            if unknown.low > unknown.high:
                return False
        return True


def expected_copies(patterns: Mapping[Pattern, int], branches: Sequence[Balance]) -> dict[Pattern, int | None]:
    """Return how many copies the messages of each pattern were owed; None if the sums do not decide.

    ``patterns`` gives the number of messages of each. Assume that a message was owed no copy, but pushed by somebody
    else, only if nothing else fits the sums.
    """
    for least in (1, 0):
        if (found := _solve(patterns, branches, least)) is not None:
            return found
    return dict.fromkeys(patterns)


def _solve(
    patterns: Mapping[Pattern, int], branches: Sequence[Balance], least: int
) -> dict[Pattern, int | None] | None:
    """Return the copies owed to each pattern, at least ``least``; None if there is no solution."""
    owed = {
        (pattern, copies): _Unknown(0, messages)
        for pattern, messages in patterns.items()
        for copies in sorted(set(pattern))
        if copies >= least
    }
    equations = [
        _Equation([(1, unknown) for (of, _), unknown in owed.items() if of == pattern], messages)
        for pattern, messages in patterns.items()
    ]
    unknowns = list(owed.values())
    for place, branch in enumerate(branches):
        terms = [(pattern[place] - copies, unknown) for (pattern, copies), unknown in owed.items()]
        # The patterns do not show copies that are excused, nor copies that no branch has had.
        excused, lost = _Unknown(0, branch.excused), _Unknown(0, max(-branch.surplus, 0))
        terms += [(1, excused), (-1, lost)]
        unknowns += [excused, lost]
        equations.append(_Equation([(factor, unknown) for factor, unknown in terms if factor], branch.surplus))
    for _ in range(MAX_ROUNDS):
        before = [(unknown.low, unknown.high) for unknown in unknowns]
        if not all(equation.narrow() for equation in equations):
            return None
        if before == [(unknown.low, unknown.high) for unknown in unknowns]:
            break
    sure = {pattern: copies for (pattern, copies), unknown in owed.items() if unknown.low == patterns[pattern]}
    return {pattern: sure.get(pattern) for pattern in patterns}
