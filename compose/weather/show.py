"""Tables of the outcome."""

from rich.console import Console
from rich.text import Text

from compose.tables import conservation, content, print_verdict
from compose.weather.keyspace import KEYS
from compose.weather.outcome import Outcome
from penstock.redis_replies import Reply, format_typed


def show(outcome: Outcome, console: Console) -> None:
    """Print tables, metrics and, last, the verdict."""
    console.print(content(outcome.comparisons, "storms and reports: in is what the rows themselves say"))
    if outcome.audit:
        console.print(conservation(outcome.audit))
    for name, fields in outcome.metrics.items():
        reply: list[Reply] = [word.encode() for pair in fields.items() for word in pair]
        console.print(Text(f"redis> hgetall {KEYS.metric(name)}\n{format_typed(reply).decode()}"), soft_wrap=True)
    ended = ", ".join(outcome.ending.statuses)
    success = f"Nothing lost, nothing doubled. Each ended with status 0 on SIGTERM: {ended}"
    print_verdict(outcome.differences, success, console)
