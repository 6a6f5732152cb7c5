"""Report in one line that an optional dependency is not installed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(extra: str, service: str) -> Iterator[None]:
    """Import within this context: if something is missing, print what to install and exit with status 1."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("common", "penstock", "services"):
            raise
        print(f"{service}: {error.name} is not installed: pip install 'penstock[{extra}]'", file=sys.stderr)
        sys.exit(1)
