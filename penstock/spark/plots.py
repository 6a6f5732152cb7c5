"""Plots of a report as SVG: shapes stretch with the page, and text and lines keep their size."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from penstock.spark.report import MEASURED, Section, Times
from penstock.spark.scales import Scale, linear, logarithmic
from penstock.spark.tables import spent
from penstock.spark.time_axis import TimeAxis

COLOURS: Final = {
    "blue": ("#0072b2", "#56b4e9"),
    "green": ("#009e73", "#2fc79b"),
    "orange": ("#e69f00", "#f0b429"),
    "red": ("#d55e00", "#ff8a3d"),
    "purple": ("#aa4499", "#d68ac7"),
    "grey": ("#596273", "#9ca3af"),
    "ink": ("#1f2937", "#e5e7eb"),
    "line": ("#d1d5db", "#374151"),
}
"""On a light and on a dark page; from the palette of Okabe and Ito, for the colour-blind."""
KINDS: Final = {
    "registered": "blue",
    "done": "green",
    "timeout": "orange",
    "failed": "purple",
    "queueTimeout": "ink",
    "retry": "blue",
    "dead": "red",
    "unknown": "grey",
}
LOOKS: Final = ("solid", "dashed", "dotted")
"""Of the lines of a panel, in this order: colour alone does not tell them apart."""
PERCENTILE_COLOURS: Final = ("blue", "orange", "red")
TENTHS: Final = (
    *(f"{10 * tenth}\N{EN DASH}{10 * tenth + 10}" for tenth in range(10)),
    "\N{GREATER-THAN OR EQUAL TO} 100",
)


@dataclass(frozen=True)
class Series:
    """What a panel shows of one ``column`` of the table of its part, and how: see ``LOOKS``, or ``area``."""

    name: str
    colour: str
    look: str
    column: str


@dataclass(frozen=True)
class Panel:
    """A plot. ``svg`` is the content of its ``svg`` element; it has no text but numbers and times."""

    unit: str
    legend: list[Series]
    svg: str


def throughput(section: Section, axis: TimeAxis) -> list[Panel]:
    """Plot work above and trouble below: on a common scale one would hide the other."""
    none = [0] * axis.count
    panels = []
    for kinds in (("registered", "done"), ("timeout", "retry", "dead")):
        rates = {kind: [count / axis.step for count in section.counts.get(kind, none)] for kind in kinds}
        scale = linear(value for line in rates.values() for value in line)
        drawn = {
            Series(kind, KINDS[kind], look, kind): _line(_steps(line, scale))
            for (kind, line), look in zip(rates.items(), LOOKS, strict=False)
        }
        panels.append(panel("events a second", scale, _times(axis), axis.count, drawn))
    return panels


def percentiles(times: Mapping[str, Times], axis: TimeAxis) -> list[Panel]:
    """Plot the percentiles of ``done``, and of ``late`` in a panel of its own if there are any."""
    panels = []
    for kind, found in times.items():
        known = [value for line in found.over_time.values() for value in line if value]
        wide = bool(known) and max(known) > 30 * min(known)
        scale = logarithmic(min(known), max(known)) if wide else linear(known)
        lines = zip(found.over_time.items(), spent(kind), PERCENTILE_COLOURS, LOOKS, strict=True)
        drawn = {
            Series(name, colour, look, column): _line(*_with_gaps(values, scale))
            for (name, values), column, colour, look in lines
        }
        unit = f"{kind}, seconds{', logarithmic' * wide}"
        panels.append(panel(unit, scale, _times(axis), axis.count, drawn))
    return panels


def histogram(section: Section) -> list[Panel]:
    counts = {kind: section.histogram[kind] for kind in MEASURED}
    sums = [sum(each) for each in zip(*counts.values(), strict=True)]
    scale = linear(sums, whole=True, room=1.12)
    drawn = _stacked(counts, lambda kind: kind, partial(_bars, scale=scale))
    width = 100 / len(TENTHS)
    middles = [(width * (place + 0.5), text) for place, text in enumerate(TENTHS)]
    shares = "".join(
        f'<text class="share" x="{x:.2f}%" y="{scale.depth(count)}%" dy="-4">{100 * count / sum(sums):.1f} %</text>'
        for (x, _), count in zip(middles, sums, strict=True)
        if count
    )
    return [panel("attempts, by % of the time allowed", scale, middles, len(TENTHS), drawn, shares)]


def failures(section: Section, axis: TimeAxis) -> list[Panel]:
    """Plot failed attempts above and dead messages below, both by reason."""
    none = [0] * axis.count
    attempts = {kind: section.counts.get(kind, none) for kind in ("timeout", "failed")}
    letters = {kind: line for kind, line in section.dead.items() if any(line) or kind != "unknown"}
    panels = []
    for unit, counts, column in (("attempts", attempts, "{}"), ("dead letters", letters, "dead of {}")):
        scale = linear((sum(each) for each in zip(*counts.values(), strict=True)), whole=True)
        drawn = _stacked(counts, column.format, partial(_area, scale=scale))
        panels.append(panel(unit, scale, _times(axis), axis.count, drawn))
    return panels


def backlog(section: Section, axis: TimeAxis) -> list[Panel]:
    values = section.backlog.over_time
    scale = linear(values, whole=True)
    shape = f'<path class="pale" d="{_area(values, [0] * axis.count, scale)}"/>{_line(_steps(values, scale))}'
    drawn = {Series("open", "blue", "solid", "open"): shape}
    return [panel("messages", scale, _times(axis), axis.count, drawn)]


def panel(
    unit: str,
    scale: Scale,
    below: Iterable[tuple[float, str]],
    count: int,
    drawn: Mapping[Series, str],
    more: str = "",
) -> Panel:
    """Draw a grid, the labels ``below`` (with their place in per cent), and shapes in units of ``count`` columns."""
    parts = []
    for tick, text in zip(scale.ticks, scale.labels, strict=True):
        depth = scale.depth(tick)
        parts.append(f'<line x2="100%" y1="{depth}%" y2="{depth}%"/>')
        parts.append(f'<text class="y" x="-8" y="{depth}%" dy=".35em">{text}</text>')
    for place, (x, text) in enumerate(below):
        odd = " odd" * (place % 2)
        parts.append(f'<text class="x{odd}" x="{x:.2f}%" y="100%" dy="1.75em">{text}</text>')
    shapes = "".join(f'<g style="color: var(--{each.colour})" class="{each.look}">{d}</g>' for each, d in drawn.items())
    parts.append(f'<svg viewBox="0 0 {count} 100" preserveAspectRatio="none">{shapes}</svg>')
    return Panel(unit, list(drawn), "".join(parts) + more)


def _times(axis: TimeAxis) -> list[tuple[float, str]]:
    return [(100 * share, text) for share, text in axis.ticks]


def _line(path: str, dots: str = "") -> str:
    return f'<path class="line" d="{path}"/>' + (f'<path class="dots" d="{dots}"/>' if dots else "")


def _steps(line: Sequence[float], scale: Scale) -> str:
    """Return a path with a level for each bucket."""
    return "M0 " + "".join(f"{scale.depth(value):g}H{place + 1}V" for place, value in enumerate(line)).rstrip("V")


def _with_gaps(line: Sequence[float | None], scale: Scale) -> tuple[str, str]:
    """Return a path between the middles of buckets with values, and one of dots for values between two gaps."""
    path, dots = "", ""
    framed = [None, *line, None]
    for place, (before, here, after) in enumerate(zip(framed, framed[1:], framed[2:], strict=False)):
        if here is None:
            continue
        point = f"{place + 0.5:g} {scale.depth(here):g}"
        if before is after is None:
            dots += f"M{point}h0"
        else:
            path += f"{'M' if before is None else 'L'}{point}"
    return path, dots


def _stacked(
    counts: Mapping[str, Sequence[int]],
    column: Callable[[str], str],
    draw: Callable[[Sequence[int], Sequence[int]], str],
) -> dict[Series, str]:
    """Draw each line of ``counts`` on top of those before it."""
    drawn: dict[Series, str] = {}
    below = [0] * len(next(iter(counts.values())))
    for kind, line in counts.items():
        top = [here + more for here, more in zip(below, line, strict=True)]
        drawn[Series(kind, KINDS[kind], "area", column(kind))] = f'<path class="area" d="{draw(top, below)}"/>'
        below = top
    return drawn


def _area(top: Sequence[int], below: Sequence[int], scale: Scale) -> str:
    """Return the outline of what lies between ``below`` and ``top``, in steps, without buckets that are empty."""
    return "".join(bar(place, 1, high, low, scale) for place, (high, low) in enumerate(zip(top, below, strict=True)))


def _bars(top: Sequence[int], below: Sequence[int], scale: Scale) -> str:
    pairs = enumerate(zip(top, below, strict=True))
    return "".join(bar(place + 0.08, 0.84, high, low, scale) for place, (high, low) in pairs)


def bar(left: float, width: float, high: float, low: float, scale: Scale) -> str:
    return f"M{left:g} {scale.depth(low):g}V{scale.depth(high):g}h{width:g}V{scale.depth(low):g}z" * (high != low)
