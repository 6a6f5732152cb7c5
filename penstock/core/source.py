"""What a consumer takes from: one of these for each wire."""

from collections.abc import Mapping
from math import inf
from typing import ClassVar, Final, Protocol, TypeVar

SETTLE_SECONDS: Final = 0.05
"""Seconds after which what was handled is settled, though more is at hand. What is taken at once lasts as long."""
AT_ONCE: Final = -inf
"""For ``due_at``: settle before anything else is handled."""
I = TypeVar("I")  # noqa: E741


class Source(Protocol[I]):
    """A wire, with what was taken from it: items are noted as they end, and settled by the next ``take``.

    An item knows its source and nothing above it. ``in_hand`` is set by who hands out, and cleared by the item as the
    last step of noting its end, so that an interrupt finds it handled or not.
    """

    noun: ClassVar[str]
    """What an item is, for errors: ``message``."""
    alone: ClassVar[bool]
    """Whether nobody else in this process may take from a source of the same name at the same time."""
    judges: bool
    """Whether some items are noted as soon as their turn comes, and handed to nobody."""
    name: str
    """Of what is taken from; loops over the same follow each other."""
    renew_every: float
    """Seconds between two renewals of the lease."""
    due_at: float
    """When (monotonic) to settle before the next item; ``AT_ONCE``."""
    in_hand: I | None

    @property
    def facts(self) -> Mapping[str, str]:
        """Return what names it in a log line."""

    @property
    def handled(self) -> int:
        """Return how many items were handled and are not settled."""

    @property
    def failures(self) -> int:
        """Return how many settlements in a row there were of items that all failed."""

    def judge(self, item: I) -> bool:
        """Note the end of ``item`` if that is known already; return whether it is."""

    async def take(self, most: int) -> list[I] | None:
        """Settle what was noted, and return at most ``most`` items that are there, oldest first; with 0 only settle.

        Return None if the lease has ended: others have all that was taken.
        """

    async def wait(self, most: int) -> list[I] | None:
        """Wait for items, for a bounded time; none if none came or it fails: then the next ``take`` finds out why.

        Return None if something else has happened, and ``take`` is to be called at once.
        """

    async def interrupt(self) -> None:
        """End a wait."""

    async def renew(self) -> None:
        """Renew the lease. Raise if that has to be tried again soon."""

    async def renew_elsewhere(self) -> None:
        """The same in another event loop, by a connection of its own, while a handler blocks this one."""

    async def give_back_ahead(self) -> None:
        """Give back to everybody what is neither in hand nor noted."""

    async def give_back(self) -> None:
        """Settle what was noted, give back the rest, and end the lease."""

    async def close(self) -> None:
        """Disconnect."""
