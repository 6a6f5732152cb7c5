"""An outcome as a person reads it."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from compose.weather.keyspace import KEYS
from compose.weather.outcome import Outcome
from compose.weather.passage import Passage
from penstock.audit import Audit
from penstock.rediscli import Reply, terminal


def show(outcome: Outcome, console: Console) -> None:
    """Print tables, metrics and, last, whether all is as promised."""
    console.print(_content(outcome.passages))
    if outcome.audit:
        console.print(_conservation(outcome.audit))
    for name, fields in outcome.metrics.items():
        reply: list[Reply] = [word.encode() for pair in fields.items() for word in pair]
        console.print(Text(f"redis> hgetall {KEYS.metric(name)}\n{terminal(reply).decode()}"), soft_wrap=True)
    for difference in outcome.differences:
        console.print(Text(f"differs: {difference}", style="bold red"), soft_wrap=True)
    if not outcome.differences:
        ended = ", ".join(outcome.statuses)
        told = f"Nothing lost, nothing doubled. Each ended with status 0 on SIGTERM: {ended}"
        console.print(Text(told, style="green"), soft_wrap=True)


def _content(passages: list[Passage]) -> Table:
    caption = "storms and reports: in is what the rows themselves say"
    table = Table("list", title="By content", caption=caption, title_justify="left", caption_justify="left")
    for heading in ("in", "out", "lost", "doubled", "never sent", "in order"):
        table.add_column(heading, justify="right")
    for passage in passages:
        amounts = (passage.sent, passage.got, passage.lost.total(), passage.doubled.total(), passage.foreign.total())
        table.add_row(passage.name, *(f"{amount:,}" for amount in amounts), "yes" if passage.in_order else "no")
    return table


def _conservation(audit: Audit) -> Table:
    title = f"Conservation: taken {'=' if audit.holds else 'is not'} delivered + dead + dropped + pending"
    table = Table("list", title=title, title_justify="left")
    for heading in ("taken", "delivered", "dead", "dropped", "pending", "difference"):
        table.add_column(heading, justify="right")
    for leg in audit.legs:
        amounts = (leg.taken, leg.delivered, leg.dead, leg.dropped, leg.pending, leg.difference)
        table.add_row(leg.name, *(f"{amount:,}" for amount in amounts))
    return table
