"""Report as one self-contained HTML file with plots and the tables that they are drawn from."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from penstock import __version__
from penstock.spark import plots, tables
from penstock.spark.report import MEASURED, Report, Section
from penstock.spark.tables import Table

if TYPE_CHECKING:
    from markupsafe import Markup

THROUGHPUT: Final = ("registered", "done", "timeout", "retry", "dead")
TEMPLATE: Final = "report.html.jinja"


@dataclass(frozen=True)
class Part:
    """A plot, or the reason why there is none, and its table."""

    title: str
    text: str
    svg: "Markup | None"
    table: Table


def page(report: Report) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    names = [section.namespace for section in report.sections]
    return environment.from_string(template()).render(
        title=names[0] if len(names) == 1 else f"{len(names)} namespaces",
        interval=tables.interval(report),
        found=f"{tables.clock(report.first)} to {tables.clock(report.last)} UTC",
        archive=report.archive,
        version=__version__,
        colours=plots.COLOURS,
        compared=tables.compared(report) if len(names) > 1 else None,
        sections=[
            {
                "namespace": section.namespace,
                "backlog": tables.backlog(section),
                "tables": [tables.events(section, report), tables.times(section), tables.dead(section)],
                "parts": list(_parts(section, report, f"n{place}")),
                "slowest": tables.slowest(section),
            }
            for place, section in enumerate(report.sections)
        ],
    )


def template() -> str:
    """Read the template, also if this package is in a zip archive."""
    return files("penstock.spark").joinpath(TEMPLATE).read_text(encoding="utf-8")


def _parts(section: Section, report: Report, name: str) -> Iterator[Part]:
    """Yield the parts of ``section``; ids in their plots begin with ``name``."""
    axis, totals = report.axis, section.totals
    bucket = f"each {tables.span(axis.step)}"
    counts = ", ".join(f"{totals.get(kind, 0):,} {kind}" for kind in THROUGHPUT)
    text = f"Events a second, mean of {bucket}: {counts}."
    table = tables.over_time(section, report, *THROUGHPUT)
    yield Part("Throughput", text, _drawn(plots.throughput(section, axis), f"{name}a", "Throughput", text), table)

    text = f"Seconds from the last delivery, percentiles of {bucket}; a gap is where no message was done."
    svg = _drawn(plots.percentiles(section.times, axis), f"{name}b", "Response time", text) if section.times else None
    table = tables.over_time(section, report, *(name for kind in section.times for name in tables.spent(kind)))
    yield Part("Response time", text if svg else "No message was done.", svg, table)

    measured = sum(map(sum, section.histogram.values()))
    aside = f" Of {section.unmeasured:,} more the archive does not say what was allowed." * bool(section.unmeasured)
    text = f"How much of the time allowed {measured:,} attempts took, {' and '.join(MEASURED)}.{aside}"
    svg = _drawn(plots.histogram(section), f"{name}c", "Response time against the timeout", text) if measured else None
    yield Part("Response time against the timeout", text, svg, tables.histogram(section))

    letters = {reason: sum(counts) for reason, counts in section.dead.items()}
    reasons = ", ".join(f"{count:,} of {reason}" for reason, count in letters.items() if count) or "none"
    attempts = f"{totals.get('timeout', 0):,} attempts timed out, {totals.get('failed', 0):,} were given up"
    text = f"{attempts}; dead letters: {reasons}. In {bucket}."
    some = totals.get("timeout") or totals.get("failed") or any(letters.values())
    title = "Timeouts and dead letters"
    letters_by_reason = [f"dead of {reason}" for reason in letters]
    svg = _drawn(plots.failures(section, axis), f"{name}d", title, text) if some else None
    yield Part(title, text, svg, tables.over_time(section, report, "timeout", "failed", *letters_by_reason))

    text = f"Messages that are not done, dead or expired, at the end of {bucket}: {tables.backlog(section)}."
    table = tables.over_time(section, report, "open")
    yield Part("Backlog", text, _drawn(plots.backlog(section.backlog, axis), f"{name}e", "Backlog", text), table)


def _drawn(svg: str, name: str, title: str, text: str) -> "Markup":
    """Return ``svg`` with a title and a description for screen readers, and ids that are unique in the page."""
    from markupsafe import Markup, escape

    head, body = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", body)
    begin = f'<svg {box[0] if box else ""} role="img" aria-labelledby="{name}-title {name}-desc">'
    return Markup(
        f'{begin}<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(text)}</desc>{body}'
    )
