"""An outcome as a person reads it."""

from rich.console import Console
from rich.text import Text

from compose.tables import conservation, content
from compose.weather.keyspace import KEYS
from compose.weather.outcome import Outcome
from penstock.redis_replies import Reply, format_typed


def show(outcome: Outcome, console: Console) -> None:
    """Print tables, metrics and, last, whether all is as promised."""
    console.print(content(outcome.passages, "storms and reports: in is what the rows themselves say"))
    if outcome.audit:
        console.print(conservation(outcome.audit))
    for name, fields in outcome.metrics.items():
        reply: list[Reply] = [word.encode() for pair in fields.items() for word in pair]
        console.print(Text(f"redis> hgetall {KEYS.metric(name)}\n{format_typed(reply).decode()}"), soft_wrap=True)
    for difference in outcome.differences:
        console.print(Text(f"differs: {difference}", style="bold red"), soft_wrap=True)
    if not outcome.differences:
        ended = ", ".join(outcome.statuses)
        told = f"Nothing lost, nothing doubled. Each ended with status 0 on SIGTERM: {ended}"
        console.print(Text(told, style="green"), soft_wrap=True)
