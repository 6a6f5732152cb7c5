"""Reliable lists: push messages, take them, and settle each when its handling ends."""

from typing import TYPE_CHECKING

from penstock.lists.lists import List, Lists
from penstock.lists.message import Message

if TYPE_CHECKING:
    from penstock.lists.work import Request, Work

__all__ = ["List", "Lists", "Message", "Request", "Work"]

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import tracked work when it is first used (PEP 562): a command of one moment has no time for it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from penstock.lists import work

        return getattr(work, name)
