"""A plot of the injected faults over time."""

from collections.abc import Sequence
from typing import Final

from penstock.spark.plots import Panel, Series, bar, panel
from penstock.spark.scales import Scale, label, linear
from penstock.testing.chaos.run import FaultResult

KINDS: Final = {"no harm": "green", "stalled for 3 s": "orange", "not met": "grey", "promise broken": "red"}
LEAST_SHARE: Final = 0.003
"""Width of a short fault, as a share of the plot, so that it can be seen."""


class Lanes(Scale):
    """A scale with a tick in the middle of each lane, and room for half a bar at both ends."""

    @property
    def labels(self) -> list[str]:
        return ["", *(f"{lane:g}" for lane in self.ticks[1:-1]), ""]


def timeline(results: Sequence[FaultResult]) -> Panel:
    """Return a plot with a row for each lane and a bar for each fault, in the colour of its result."""
    scale = Lanes(tuple(range(2 + max(result.lane for result in results) + 1)))
    ticks = linear((result.ended for result in results), whole=True).ticks
    end = round(ticks[-1])
    drawn = dict[Series, str]()
    for kind, colour in KINDS.items():
        bars = (
            bar(each.begun, max(each.ended - each.begun, LEAST_SHARE * end), each.lane + 1.4, each.lane + 0.6, scale)
            for each in results
            if _kind(each) == kind
        )
        drawn[Series(kind, colour, "area", kind)] = f'<path class="area" d="{"".join(bars)}"/>'
    return panel("stages, over seconds", scale, [(100 * at / end, label(at, end)) for at in ticks], end, drawn)


def _kind(result: FaultResult) -> str:
    if result.broken:
        return "promise broken"
    if not result.met:
        return "not met"
    return "stalled for 3 s" if result.stall >= 3 else "no harm"
