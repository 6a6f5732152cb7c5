"""One message of a list, in hand."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from penstock.payload import Received, as_bytes

if TYPE_CHECKING:
    from penstock.lists.consumer import Consumer


class Message(Received):
    """One message in hand: ``with message: handle(message.body)``.

    It is settled when the ``with`` ends, and goes back to its list, as the next to be taken, if that raises.
    """

    __slots__ = ("_consumer",)

    def __init__(self, body: bytes, consumer: "Consumer") -> None:
        self.body, self._consumer = body, consumer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._consumer.note_end(self, failed=kind is not None)
        return None

    def also_push(self, name: bytes | str, *messages: bytes | str) -> None:
        """Push results to the list ``name`` in the transaction that settles this message, or not at all if it fails.

        On a Redis Cluster the names of both lists need one hash tag.
        """
        self._consumer.note_results(self, as_bytes(name), [*map(as_bytes, messages)])
