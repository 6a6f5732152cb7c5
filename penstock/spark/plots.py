"""Plots of a report as SVG, with the colours and the typeface of the page."""

import io
import re
from collections.abc import Callable, Sequence
from datetime import UTC
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec

from penstock.spark.report import MEASURED, Backlog, Section, Times
from penstock.spark.time_axis import DAY, TimeAxis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = {
    "blue": ("#0072b2", "#56b4e9"),
    "green": ("#009e73", "#2fc79b"),
    "orange": ("#e69f00", "#f0b429"),
    "red": ("#d55e00", "#ff8a3d"),
    "purple": ("#aa4499", "#d68ac7"),
    "grey": ("#6b7280", "#9ca3af"),
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
INK, LINE = COLOURS["ink"][0], COLOURS["line"][0]
STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": LINE,
    "grid.color": LINE,
}
WIDTH: Final = 9.0
HEIGHT: Final = 2.3
"""Inches, for each row of axes."""


P = ParamSpec("P")


def styled(draw: Callable[P, str]) -> Callable[P, str]:
    """Run ``draw`` within our style: matplotlib reads some of it when a plot is built, some when it is drawn."""

    @wraps(draw)
    def drawn(*args: P.args, **named: P.kwargs) -> str:
        from matplotlib import rc_context

        with rc_context(STYLE):
            return draw(*args, **named)

    return drawn


@styled
def throughput(section: Section, axis: TimeAxis) -> str:
    """Plot work above and trouble below: on common axes one would hide the other."""
    figure, (work, trouble) = _figure(2)
    for axes, kinds in ((work, ("registered", "done")), (trouble, ("timeout", "retry", "dead"))):
        for kind, dash in zip(kinds, ("-", "--", ":"), strict=False):
            rates = [count / axis.step for count in section.counts.get(kind, [0] * axis.count)]
            look: Any = {"color": _colour(kind), "linewidth": 1.4, "linestyle": dash}
            axes.stairs(rates, _edges(axis), baseline=None, label=kind, **look)
        axes.set_ylim(bottom=0, top=None if any(section.totals.get(kind) for kind in kinds) else 1)
        axes.set_ylabel("events a second")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        _legend(axes)
    _time(trouble, axis)
    return svg(figure)


@styled
def percentiles(times: dict[str, Times], axis: TimeAxis) -> str:
    """Plot the percentiles of ``done``, and of ``late`` in a row of its own if there are any."""
    figure, rows = _figure(len(times))
    middles = [(start + axis.step / 2) / DAY for start in axis.starts]
    looks = {"p50": ("blue", "-", "o"), "p95": ("orange", "--", "s"), "p99": ("red", ":", "^")}
    for axes, (kind, found) in zip(rows, times.items(), strict=True):
        for name, (colour, dash, marker) in looks.items():
            values = [float("nan") if value is None else value for value in found.over_time[name]]
            look: Any = {
                "color": _hex(colour),
                "marker": marker,
                "markersize": 3,
                "markevery": _alone(found.over_time[name]),
            }
            axes.plot(middles, values, dash, label=name, linewidth=1.3, **look)
        known = [value for line in found.over_time.values() for value in line if value]
        if known and max(known) > 30 * min(known):
            _logarithmic(axes, max(known) / min(known))
        else:
            axes.set_ylim(bottom=0, top=None if known else 1)
        axes.set_ylabel("seconds" if len(times) == 1 else f"{kind}, seconds")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        _legend(axes)
    _time(rows[-1], axis)
    return svg(figure)


@styled
def histogram(section: Section) -> str:
    figure, (axes,) = _figure(1)
    names = [f"{10 * tenth}\N{EN DASH}{10 * tenth + 10} %" for tenth in range(10)] + ["reached"]
    below = [0] * len(names)
    whole = sum(map(sum, section.histogram.values()))
    for kind in MEASURED:
        counts = section.histogram[kind]
        bars = axes.bar(names, counts, bottom=below, label=kind, color=_colour(kind), width=0.85)
        below = [here + more for here, more in zip(below, counts, strict=True)]
    labels = [f"{100 * each / whole:.1f} %" if each else "" for each in below]
    axes.bar_label(bars, labels, padding=2, fontsize=8, color=INK)
    axes.set_ylim(0, max(below) * 1.12)
    axes.set_xlabel("share of the time allowed")
    axes.set_ylabel("attempts")
    _whole(axes)
    _legend(axes)
    return svg(figure)


@styled
def failures(section: Section, axis: TimeAxis) -> str:
    """Plot failed attempts above and dead messages below, both by reason."""
    figure, (attempts, letters) = _figure(2)
    none = [0] * axis.count
    for axes, counts, what in (
        (attempts, {kind: section.counts.get(kind, none) for kind in ("timeout", "failed")}, "attempts"),
        (letters, section.dead, "dead letters"),
    ):
        below = none
        for kind, line in counts.items():
            if any(line) or kind != "unknown":
                top = [here + more for here, more in zip(below, line, strict=True)]
                axes.stairs(top, _edges(axis), baseline=below, fill=True, label=kind, color=_colour(kind))
                below = top
        axes.set_ylim(0, max(below) * 1.05 or 1)
        axes.set_ylabel(what)
        _whole(axes)
        _legend(axes)
    _time(letters, axis)
    return svg(figure)


@styled
def backlog(found: Backlog, axis: TimeAxis) -> str:
    figure, (axes,) = _figure(1)
    axes.stairs(found.over_time, _edges(axis), color=_hex("blue"), fill=True, alpha=0.25)
    axes.stairs(found.over_time, _edges(axis), color=_hex("blue"), linewidth=1.4, baseline=None)
    axes.set_ylim(min(0, *found.over_time), max(1, *found.over_time) * 1.08)
    axes.set_ylabel("open messages")
    _whole(axes)
    _time(axes, axis)
    return svg(figure)


def _figure(rows: int) -> "tuple[Figure, Sequence[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT * rows + 0.3), layout="constrained", facecolor="none")
    axes = figure.subplots(rows, sharex=True, squeeze=False)[:, 0]
    for each in axes:
        each.set_facecolor("none")
        each.tick_params(length=0)
    return figure, list(axes)


def svg(figure: "Figure") -> str:
    """Return ``figure`` as inline SVG, with colours as CSS variables of the page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = file.getvalue()
    for name, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{name})")
    text = re.sub(r"<style.*?</style>|font-family: [^;]*; ", "", text[text.index("<svg") :], flags=re.DOTALL)
    meant = set(re.findall(r'(?:href="|url\()#([^")]*)', text))
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in meant else "", text)


def _hex(name: str) -> str:
    return COLOURS[name][0]


def _alone(line: Sequence[float | None]) -> list[int]:
    """Return the indexes of values between two gaps, which a line does not show."""
    framed = [None, *line, None]
    around = zip(framed, framed[1:], framed[2:], strict=False)
    return [place for place, (before, here, after) in enumerate(around) if here is not None and before is after is None]


def _colour(kind: str) -> str:
    return _hex(KINDS[kind])


def _edges(axis: TimeAxis) -> list[float]:
    """Return the bounds of the buckets in days, as matplotlib counts them."""
    return [start / DAY for start in (*axis.starts, axis.start + axis.step * axis.count)]


def _time(axes: "Axes", axis: TimeAxis) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    edges = _edges(axis)
    axes.set_xlim(edges[0], edges[-1])
    locator = AutoDateLocator(tz=UTC, minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.set_xlabel("time (UTC)")


def _whole(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _logarithmic(axes: "Axes", ratio: float) -> None:
    """Label 1, 2 and 5 of each power of ten if ``ratio`` leaves room; no minor ticks: their labels are TeX."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ratio <= 1_000 else (1.0,)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(axes: "Axes") -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6, borderaxespad=0.2, handlelength=1.6)
