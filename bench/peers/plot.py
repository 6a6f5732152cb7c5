"""Bar charts with error bars, as SVG."""

import io
import re
from typing import Any, Final

from bench.peers.results import Row, short
from bench.peers.works import LIMIT, OURS

OURS_COLOUR, LIMIT_COLOUR, OTHERS_COLOUR = "#0072b2", "#6b7280", "#e69f00"
"""From the palette of Okabe and Ito, which colour-blind readers can tell apart."""
STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
}


def bars(rows: list[Row]) -> str:
    """Return a chart with a bar per row, from the top, on a logarithmic scale; error bars span minimum to maximum."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(8, 0.7 + 0.3 * len(rows)), layout="constrained")
        axes = figure.subplots()
        medians = [row.median for row in rows]
        below = [row.median - min(row.samples) for row in rows]
        above = [max(row.samples) - row.median for row in rows]
        names = [row.peer for row in rows]
        look: Any = {"color": [_colour(name) for name in names], "ecolor": "#1f2937", "capsize": 3, "height": 0.65}
        axes.barh(names, medians, xerr=[below, above], **look)
        axes.set_xscale("log")
        axes.set_xlim(left=min(min(row.samples) for row in rows) / 3, right=max(max(row.samples) for row in rows) * 4)
        for place, row in enumerate(rows):
            label: Any = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(short(row.median), (max(row.samples), place), **label)
        axes.invert_yaxis()
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
        axes.grid(axis="x", color="#d1d5db")
        axes.set_xlabel(
            "milliseconds (logarithmic), less is better"
            if rows[0].work.unit == "ms"
            else "a second (logarithmic), more is better"
        )
        return _svg(figure)


def _colour(name: str) -> str:
    return OURS_COLOUR if name.startswith(OURS) else LIMIT_COLOUR if name == LIMIT else OTHERS_COLOUR


def _svg(figure: Any) -> str:
    """Return the figure as SVG without a date, so that equal figures give equal files."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return re.sub(r"[ \t]+$", "", out.getvalue(), flags=re.MULTILINE)
