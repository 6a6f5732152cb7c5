"""Tables of the outcome."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rich.console import Console
from rich.table import Table

from compose.sites.outcome import Delivery, Outcome
from compose.tables import conservation, print_statuses, print_verdict

CONTENT: Final[dict[str, Callable[[Delivery], str]]] = {
    "sent": lambda site: f"{site.comparison.sent:,}",
    "arrived": lambda site: f"{site.comparison.got:,}",
    "lost": lambda site: f"{site.comparison.lost.total():,}",
    "doubled": lambda site: f"{site.comparison.doubled.total():,}",
    "never sent": lambda site: f"{site.comparison.foreign.total():,}",
    "in order": lambda site: "yes" if site.comparison.in_order else "no",
}
TIMES: Final[dict[str, Callable[[Delivery], str]]] = {
    "its server was down (s)": lambda site: f"{site.down_for:.1f}",
    "most that waited for it at site one": lambda site: f"{site.most_waiting:,}",
    "longest delay (s)": lambda site: "-" if site.delay is None else f"{site.delay:.2f}",
}
METRICS: Final = {
    "taken": ("taken", "count"),
    "delivered": ("delivered", "count"),
    "dead": ("dead", "count"),
    "batches": ("batches", "count"),
    "bytes": ("batches", "bytes"),
}
"""Rows for the metrics of a vpush: name, and the metric and field to show."""
LINK: Final = {"state": "state", "rtt": "round trip (s)", "waiting": "waiting", "oldest": "oldest (s)"}
"""Rows for the last state of the link: field, and the name to show."""


def show(outcome: Outcome, console: Console) -> None:
    """Print tables and, last, the verdict."""
    console.print(_sites(outcome.deliveries))
    if audits := [audit for audit in outcome.audits.values() if audit]:
        outputs = [branch for audit in audits for branch in audit.legs]
        problems = [problem for audit in audits for problem in audit.problems]
        console.print(conservation(replace(audits[0], legs=outputs, problems=problems)))
    print_statuses(outcome.ending, console)
    print_verdict(outcome.differences, "Nothing lost, nothing doubled, all in order at every site", console)


def _sites(sites: list[Delivery]) -> Table:
    caption = "longest delay: from LPUSH at site one until it was seen at the site, looked for every 20 ms"
    table = Table("", title="What arrived at each site", caption=caption, title_justify="left", caption_justify="left")
    for site in sites:
        table.add_column(site.name, justify="right")
    for rows in (CONTENT, TIMES):
        for name, cell in rows.items():
            table.add_row(name, *(cell(site) for site in sites))
        table.add_section()
    for name, (metric, field) in METRICS.items():
        counts = (int(site.report.metrics.get(metric, {}).get(field, 0)) for site in sites)
        table.add_row(f"vpush: {name}", *(f"{count:,}" for count in counts))
    table.add_section()
    for field, name in LINK.items():
        table.add_row(f"link: {name}", *(site.report.link.get(field, "-") for site in sites))
    return table
