"""Events of a bus and its objects, and who listens to them."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Final, TypeVar

from penstock.base.errors import WrongCall
from penstock.base.log import Log
from penstock.core.tasks import Tasks

Handler = TypeVar("Handler", bound=Callable[..., Any])
_log: Final = Log("penstock.bus")


class Emitter:
    """Calls handlers when something happens: ``queue.on("attached", handler)``.

    A handler may be a coroutine function. If one raises, ``CancelledError``, too, that is logged, and the others are
    called.
    """

    EVENTS: ClassVar[frozenset[str]]
    """The names that ``on`` accepts."""
    ALIASES: ClassVar[dict[str, str]] = {}
    """Other names for some of them."""

    def __init__(self) -> None:
        self._handlers: dict[str, list[tuple[Callable[..., Any], bool]]] = {}
        self._handling = Tasks(_log)

    def on(self, event: str, handler: Handler) -> Handler:
        """Call ``handler`` whenever ``event`` happens, and return it. Raise ``WrongCall`` if there is no such event."""
        self._handlers.setdefault(self._known(event), []).append((handler, False))
        return handler

    def once(self, event: str, handler: Handler) -> Handler:
        """Call ``handler`` the next time only."""
        self._handlers.setdefault(self._known(event), []).append((handler, True))
        return handler

    def off(self, event: str, handler: Callable[..., Any] | None = None) -> None:
        """Call ``handler`` no more; without one, call none."""
        kept = [each for each in self._handlers.get(self._known(event), []) if handler not in (None, each[0])]
        self._handlers[self._known(event)] = kept

    def emit(self, event: str, *values: Any) -> None:
        """Call the handlers of ``event``; those that are coroutine functions run on their own."""
        for handler in self._due(event):
            if (waits := self._call(event, handler, values)) is not None:
                self._handling.begin(waits)

    async def deliver(self, event: str, *values: Any) -> None:
        """Call the handlers of ``event`` one after the other, and wait for those that are coroutine functions."""
        for handler in self._due(event):
            if (waits := self._call(event, handler, values)) is not None:
                await waits

    def has_handlers(self, event: str) -> bool:
        """Return whether anybody listens to ``event``."""
        return bool(self._handlers.get(event))

    def _known(self, event: str) -> str:
        name = self.ALIASES.get(event, event)
        if name not in self.EVENTS:
            raise WrongCall(f"there is no event {event!r}: expected one of {', '.join(sorted(self.EVENTS))}")
        return name

    def _due(self, event: str) -> list[Callable[..., Any]]:
        handlers = self._handlers.get(event)
        if not handlers:
            return []
        due = [handler for handler, _ in handlers]
        handlers[:] = [each for each in handlers if not each[1]]
        return due

    def _call(self, event: str, handler: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        try:
            result = handler(*values)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # of the user's code: the bus goes on
            _log.error("a handler failed", error, notice=event)
            return None
        return self._wait(event, result) if inspect.isawaitable(result) else None

    async def _wait(self, event: str, result: Any) -> None:
        try:
            await result
        except (Exception, asyncio.CancelledError) as error:  # of the user's code: the bus goes on
            if is_cancelled(error):
                raise
            _log.error("a handler failed", error, notice=event)


def is_cancelled(error: BaseException) -> bool:
    """Return whether ``error`` was raised because the current task is being cancelled, not by a handler of its own."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
