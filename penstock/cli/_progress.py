"""A bar on standard error for work that may be long."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MIN_STEPS: Final = 5_000
"""Steps from which on work counts as long."""


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields what is called with the number of steps done since; shows nothing where there is no terminal."""
    if total < MIN_STEPS or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(title), total=total)
        yield lambda steps: bar.advance(task, steps)
