"""Name the extra that installs a package which is missing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.base.errors import PenstockError

OURS: Final = ("common", "penstock", "services")


class MissingExtra(PenstockError, ModuleNotFoundError):
    """A package that an extra installs is missing; the message is one line that says which, and how to install it."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import within this context what the extra ``name`` installs. Raise ``MissingExtra``."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtra) or not package or package in OURS:
            raise
        raise MissingExtra(f"{package} is not installed: pip install 'penstock[{name}]'", name=package) from None
