"""Markdown page of a report, with a plot for each work."""

from pathlib import Path
from typing import Final

from bench.peers.plot import bars
from bench.peers.results import Report, Row, short
from bench.peers.works import LIMIT, OURS, Work

TEMPLATE: Final = "benchmarks.md.jinja"


def write(report: Report, file: Path) -> None:
    """Write the page to ``file``, and its plots to a folder of the same name without suffix."""
    plots = file.with_suffix("")
    plots.mkdir(parents=True, exist_ok=True)
    for work in Work:
        if rows := [row for row in ranked(report.of(work)) if row.samples]:
            (plots / f"{work}.svg").write_text(bars(rows))
    file.write_text(page(report, plots.name))


def page(report: Report, plots: str) -> str:
    """Return the Markdown; ``plots`` is the folder of its plots, relative to the page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    template = environment.from_string((Path(__file__).parent / TEMPLATE).read_text())
    return template.render(
        machine=report.machine,
        rounds=report.rounds,
        members=report.members,
        plots=plots,
        measured=lambda work: bool(report.of(Work(work))),
        plotted=lambda work: any(row.samples for row in report.of(Work(work))),
        table=lambda work: table(report, Work(work)),
    )


def table(report: Report, work: Work) -> str:
    """Return the Markdown table of a work, the best first; rows without figures are last."""
    head = ["who", "what runs", "messages", f"median, {work.unit}", "min - max", "/ limit", "/ Penstock"]
    lines = [head, ["---"] * 3 + ["---:"] * 4, *(_cells(report, row) for row in ranked(report.of(work)))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def ranked(rows: list[Row]) -> list[Row]:
    """Return ``rows``, the best first; rows without figures are last."""
    measured = sorted((row for row in rows if row.samples), key=lambda row: row.median)
    if measured and measured[0].work is not Work.REPLIES:
        measured.reverse()
    return measured + [row for row in rows if not row.samples]


def figures(report: Report, row: Row) -> list[str]:
    """Return median, spread, and the ratios to the limit and to Penstock as text; or why there are no figures."""
    if not row.samples:
        return [f"not measured: {row.missing}", "", "", ""]
    spread = f"{short(min(row.samples))} - {short(max(row.samples))}"
    return [short(row.median), spread, *(_ratio(report.ratio(row, to)) for to in (LIMIT, OURS))]


def _cells(report: Report, row: Row) -> list[str]:
    who = f"**{row.peer}**" if row.peer.startswith(OURS) or row.peer == LIMIT else row.peer
    return [_cell(word) for word in (who, row.how, f"{row.messages:,}", *figures(report, row))]


def _cell(words: str) -> str:
    """Escape text for a cell of a Markdown table."""
    return " ".join(words.split()).replace("|", "\\|")


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
