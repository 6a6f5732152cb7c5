"""A progress bar on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MIN_STEPS: Final = 5_000
"""Fewer steps show no bar."""


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of steps done since its last call; show a bar only on a terminal."""
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
