"""Report as one self-contained HTML file with plots and the tables that they are drawn from."""

import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.spark import plots, tables
from penstock.spark.plots import Panel
from penstock.spark.report import MEASURED, Report, Section
from penstock.spark.tables import Table

if TYPE_CHECKING:
    from markupsafe import Markup

THROUGHPUT: Final = ("registered", "done", "timeout", "retry", "dead")
TEMPLATE: Final = "report.html.jinja"
SCRIPT: Final = "report.js"
MOMENT: Final = re.compile(r"\d+-\d\d-\d\d \d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Part:
    """Panels, none if there is nothing to plot, and the table of their values."""

    title: str
    text: str
    panels: list[Panel]
    table: Table
    step: int | None = None
    """Seconds of a bucket, if the values of the table are counts and the panels show rates."""


def page(report: Report) -> str:
    names = [section.namespace for section in report.sections]
    return rendered(
        resource(TEMPLATE),
        title=names[0] if len(names) == 1 else f"{len(names)} namespaces",
        interval=tables.interval(report),
        found=f"{tables.clock(report.first)} to {tables.clock(report.last)} UTC",
        archive=report.archive,
        compared=tables.compared(report) if len(names) > 1 else None,
        sections=[
            {
                "namespace": section.namespace,
                "backlog": tables.backlog(section),
                "figures": tables.key_figures(section),
                "tables": [tables.events(section, report), tables.times(section), tables.dead(section)],
                "parts": list(_parts(section, report)),
                "slowest": tables.slowest(section),
            }
            for section in report.sections
        ],
    )


def rendered(template: str, **values: object) -> str:
    """Return the page of ``template``, which extends the one of all reports."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(resource),
    )
    environment.filters["moments"] = _unbroken
    script = resource(SCRIPT)
    return environment.from_string(template).render(
        version=__version__,
        colours=plots.COLOURS,
        script=Markup(script),
        script_hash=b64encode(sha256(script.encode()).digest()).decode(),
        **values,
    )


def resource(name: str, package: str = "penstock.spark") -> str:
    """Read a file of a package, also if that is in a zip archive."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _unbroken(text: str) -> "Markup":
    """Mark moments in ``text``, so that no line ends within a date."""
    from markupsafe import Markup, escape

    return Markup(MOMENT.sub(r'<span class="moment">\g<0></span>', str(escape(text))))


def _parts(section: Section, report: Report) -> Iterator[Part]:
    axis, totals = report.axis, section.totals
    bucket = f"each {tables.span(axis.step)}"
    counts = ", ".join(f"{totals.get(kind, 0):,} {kind}" for kind in THROUGHPUT)
    text = f"Events a second, mean of {bucket}: {counts}."
    table = tables.over_time(section, report, *THROUGHPUT)
    yield Part("Throughput", text, plots.throughput(section, axis), table, axis.step)

    text = f"Seconds from the last delivery, percentiles of {bucket}; a gap is where no message was done."
    table = tables.over_time(section, report, *(name for kind in section.times for name in tables.spent(kind)))
    panels = plots.percentiles(section.times, axis)
    yield Part("Response time", text if panels else "No message was done.", panels, table)

    measured = sum(map(sum, section.histogram.values()))
    aside = f" Of {section.unmeasured:,} more the archive does not say what was allowed." * bool(section.unmeasured)
    text = f"How much of the time allowed {measured:,} attempts took, {' and '.join(MEASURED)}.{aside}"
    panels = plots.histogram(section) if measured else []
    yield Part("Response time against the timeout", text, panels, tables.histogram(section))

    letters = {reason: sum(counts) for reason, counts in section.dead.items()}
    reasons = ", ".join(f"{count:,} of {reason}" for reason, count in letters.items() if count) or "none"
    attempts = f"{totals.get('timeout', 0):,} attempts timed out, {totals.get('failed', 0):,} were given up"
    text = f"{attempts}; dead letters: {reasons}. In {bucket}."
    some = totals.get("timeout") or totals.get("failed") or any(letters.values())
    table = tables.over_time(section, report, "timeout", "failed", *(f"dead of {reason}" for reason in letters))
    yield Part("Timeouts and dead letters", text, plots.failures(section, axis) if some else [], table)

    text = f"Messages that are not done, dead or expired, at the end of {bucket}: {tables.backlog(section)}."
    yield Part("Backlog", text, plots.backlog(section, axis), tables.over_time(section, report, "open"))
