"""Report in one line that an optional dependency is not installed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.base.extras import MissingExtra, extra


@contextmanager
def needed(name: str, service: str) -> Iterator[None]:
    """Import within this context: if something is missing, print what to install and exit with status 1."""
    try:
        with extra(name):
            yield
    except MissingExtra as error:
        print(f"{service}: {error}", file=sys.stderr)
        sys.exit(1)
