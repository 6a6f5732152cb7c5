"""Tables that the demos of several compositions print."""

from collections.abc import Sequence

from rich.table import Table

from compose.passage import Passage
from penstock.accounting.audit import Audit
from penstock.accounting.tracked import TrackedAudit


def content(passages: Sequence[Passage], caption: str, *, ordered: bool = True) -> Table:
    """What went in against what came out."""
    table = Table("list", title="By content", caption=caption, title_justify="left", caption_justify="left")
    for heading in ("in", "out", "lost", "doubled", "never sent", *(["in order"] if ordered else [])):
        table.add_column(heading, justify="right")
    for passage in passages:
        amounts = (passage.sent, passage.got, passage.lost.total(), passage.doubled.total(), passage.foreign.total())
        order = ["yes" if passage.in_order else "no"] if ordered else []
        table.add_row(passage.name, *(f"{amount:,}" for amount in amounts), *order)
    return table


def conservation(audit: Audit) -> Table:
    """The sum of a hop, for every list that it feeds."""
    title = f"Conservation: taken {'=' if audit.holds else 'is not'} delivered + dead + dropped + pending"
    table = Table("list", title=title, title_justify="left")
    for heading in ("taken", "delivered", "dead", "dropped", "pending", "missing"):
        table.add_column(heading, justify="right")
    for leg in audit.legs:
        amounts = (leg.taken, leg.delivered, leg.dead, leg.dropped, leg.pending, leg.difference)
        table.add_row(leg.name, *(f"{amount:,}" for amount in amounts))
    return table


def laws(ledgers: Sequence[TrackedAudit]) -> Table:
    """The sums of namespaces that track their messages, side by side."""
    holds = all(ledger.holds for ledger in ledgers)
    title = f"Conservation: each step {'is' if holds else 'should be'} the sum of those below it"
    table = Table("step", title=title, title_justify="left")
    for ledger in ledgers:
        table.add_column(ledger.namespace, justify="right")
    for same in zip(*(ledger.laws for ledger in ledgers), strict=True):
        table.add_row(same[0].whole, *(f"{law.count:,}" for law in same))
        for part in same[0].parts:
            table.add_row(f"  {part}", *(f"{law.parts[part]:,}" for law in same))
        table.add_section()
    return table
