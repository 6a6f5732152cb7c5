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
COURSE: Final[dict[str, Callable[[Delivery], str]]] = {
    "its server was down (s)": lambda site: f"{site.down_for:.1f}",
    "most that waited for it at site one": lambda site: f"{site.most_waiting:,}",
    "longest delay (s)": lambda site: "-" if site.delay is None else f"{site.delay:.2f}",
}
COUNTED: Final = {
    "taken": ("taken", "count"),
    "delivered": ("delivered", "count"),
    "dead": ("dead", "count"),
    "batches": ("batches", "count"),
    "bytes": ("batches", "bytes"),
}
"""What is told of the metrics of a vpush, and in which metric and field it stands."""
LINK: Final = {"state": "state", "rtt": "round trip (s)", "waiting": "waiting", "oldest": "oldest (s)"}
"""What is told of the link as its vpush noted it last."""


def show(outcome: Outcome, console: Console) -> None:
    """Print tables and, last, whether all is as promised."""
    console.print(_sites(outcome.deliveries))
    if audits := [audit for audit in outcome.audits.values() if audit]:
        legs = [leg for audit in audits for leg in audit.legs]
        problems = [problem for audit in audits for problem in audit.problems]
        console.print(conservation(replace(audits[0], legs=legs, problems=problems)))
    print_statuses(outcome.ending, console)
    print_verdict(outcome.differences, "Nothing lost, nothing doubled, all in order at every site", console)


def _sites(sites: list[Delivery]) -> Table:
    caption = "longest delay: from LPUSH at site one until it was seen at the site, looked for every 20 ms"
    table = Table("", title="What arrived at each site", caption=caption, title_justify="left", caption_justify="left")
    for site in sites:
        table.add_column(site.name, justify="right")
    for rows in (CONTENT, COURSE):
        for name, told in rows.items():
            table.add_row(name, *(told(site) for site in sites))
        table.add_section()
    for name, (metric, field) in COUNTED.items():
        counts = (int(site.report.metrics.get(metric, {}).get(field, 0)) for site in sites)
        table.add_row(f"vpush: {name}", *(f"{count:,}" for count in counts))
    table.add_section()
    for field, name in LINK.items():
        table.add_row(f"link: {name}", *(site.report.link.get(field, "-") for site in sites))
    return table
