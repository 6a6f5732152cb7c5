"""One message of a list, in hand."""

from types import TracebackType
from typing import Protocol, Self

from penstock.base.errors import WrongCall
from penstock.base.payload import Received, as_bytes
from penstock.lists.settlement import MAX_MESSAGE_BYTES, MAX_RESULTS, Results


class Settles(Protocol):
    """What a message tells how its handling has ended."""

    def note_end(self, message: "Message", results: Results, failures: int, /) -> None:
        """Note that ``message`` was handled, what it pushes, and how often it had failed before."""

    def note_failed(self, message: "Message", error: BaseException | None, /) -> None:
        """Note that ``error`` ended the handling of ``message``."""

    def check_result(self, message: "Message", target: bytes, /) -> None:
        """Raise ``WrongCall`` unless ``message`` is in hand, and a result of it may go to ``target``."""


class Message(Received):
    """One message in hand: ``with message: handle(message.body)``.

    It is settled when the ``with`` ends, and goes back to its list, as the next to be taken, if that raises.
    """

    __slots__ = ("_failures", "_results", "_source")

    def __init__(self, body: bytes, source: Settles, failures: int = 0) -> None:
        self.body, self._source, self._failures = body, source, failures
        self._results: list[tuple[bytes, bytes]] | None = None

    @property
    def attempt(self) -> int:
        """The number of this delivery: 1, and 1 more for each that has failed, or whose consumer has died.

        The server counts them by the bytes of the message: messages that are equal share their number.
        """
        return self._failures + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if kind is None:
            self._source.note_end(self, self._results or (), self._failures)
        else:
            self._source.note_failed(self, error)
        self._results = None
        return None

    def also_push(self, name: bytes | str, *messages: bytes | str) -> None:
        """Push results to the list ``name`` in the transaction that settles this message, or not at all if it fails.

        On a Redis Cluster the names of both lists need one hash tag. Raise ``WrongCall`` for more than 1,000
        results, or several of more than 16 MiB together.
        """
        target = as_bytes(name)
        self._source.check_result(self, target)
        results = (self._results or []) + [(target, as_bytes(message)) for message in messages]
        if len(results) > MAX_RESULTS:
            raise WrongCall(f"more than {MAX_RESULTS:,} results of one message: push them with List.push_many")
        if len(results) > 1 and sum(len(result) for _, result in results) > MAX_MESSAGE_BYTES:
            raise WrongCall("more than 16 MiB of results of one message: push them with List.push_many")
        self._results = results
