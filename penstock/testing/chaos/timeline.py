"""A plot of the injected faults over time, as SVG."""

import io
import re
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.figure import Figure

from penstock.spark.plots import COLOURS
from penstock.testing.chaos.run import FaultResult, Report

WIDTH_INCHES: Final = 9.0
ROW_INCHES: Final = 0.42
"""Inches for each lane."""
KINDS: Final = {"no harm": "green", "stalled for 3 s": "orange", "not met": "grey", "promise broken": "red"}
INK, LINE = COLOURS["ink"][0], COLOURS["line"][0]
STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": LINE,
}


def timeline(report: Report) -> str:
    """Return a plot with a row for each lane and a bar for each fault, in the colour of its result."""
    with rc_context(STYLE):  # matplotlib reads some of it when a plot is built, some when it is drawn
        return _svg(_figure(report))


def _figure(report: Report) -> Figure:
    lanes = 1 + max(result.lane for result in report.results)
    figure = Figure(figsize=(WIDTH_INCHES, 1.2 + ROW_INCHES * lanes), layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    for kind, colour in KINDS.items():
        for place, result in enumerate(each for each in report.results if _kind(each) == kind):
            look: Any = {"facecolors": COLOURS[colour][0], "edgecolors": "none"}
            span = (result.begun, max(result.ended - result.begun, 0.05))
            axes.broken_barh([span], (result.lane - 0.4, 0.8), label=None if place else kind, **look)
    axes.set_yticks(range(lanes), [f"stage {lane + 1}" for lane in range(lanes)])
    axes.set_xlabel("seconds")
    axes.set_xlim(left=0)
    axes.grid(visible=False)
    figure.legend(loc="outside upper left", ncols=len(KINDS), frameon=False)
    return figure


def _svg(figure: Figure) -> str:
    """Return ``figure`` as inline SVG, with colours as CSS variables of the page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = file.getvalue()
    for name, (light, _) in COLOURS.items():
        text = text.replace(light, f"var(--{name})")
    text = re.sub(r"<style.*?</style>|font-family: [^;]*; ", "", text[text.index("<svg") :], flags=re.DOTALL)
    meant = set(re.findall(r'(?:href="|url\()#([^")]*)', text))
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in meant else "", text)


def _kind(result: FaultResult) -> str:
    if result.broken:
        return "promise broken"
    if not result.met:
        return "not met"
    return "stalled for 3 s" if result.stall >= 3 else "no harm"
