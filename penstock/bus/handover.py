"""Hand over the messages of one end of a channel, one by one: to a loop over them, or to handlers."""

import asyncio
from collections.abc import AsyncIterator, Callable

from penstock.base.errors import WrongCall
from penstock.bus.events import Emitter
from penstock.bus.message import Message


class Handover:
    """A message waits for a loop over ``messages``, or for a handler of ``message`` of the ``channel``.

    ``taken`` is called whenever one of them has taken a message; the next one waits until it has handled it.
    """

    def __init__(self, channel: Emitter, name: str, taken: Callable[[], None] = lambda: None) -> None:
        self._channel, self._name, self._note_taken = channel, name, taken
        self._held: Message | None = None
        """What nobody has taken yet."""
        self._changed = asyncio.Event()
        """Wakes ``give``: there may be who takes what is held, or who has handled it."""
        self._offered = asyncio.Event()
        """Wakes the loop over ``messages``: something is held, or this end has left."""
        self._iterated = self._handles = False
        """Whether there is such a loop, and whether it handles a message."""

    @property
    def is_awaited(self) -> bool:
        """Return whether there is a loop or a handler."""
        return self._iterated or self._channel.has_handlers("message")

    def wake(self) -> None:
        """Look for a handler again: there may be a new one."""
        self._changed.set()

    def withdraw(self) -> bool:
        """Hold no message any more, and have the loop look whether it goes on; return whether one was held."""
        held, self._held = self._held, None
        self._changed.set()
        self._offered.set()
        return held is not None

    async def give(self, message: Message) -> None:
        """Wait until somebody has handled ``message``, or it is withdrawn."""
        self._held = message
        while self._held is message or self._handles:
            if self._held is message and not self._iterated and self._channel.has_handlers("message"):
                self._held = None
                self._note_taken()
                await self._channel.deliver("message", message)
                return
            self._offered.set()
            self._changed.clear()
            await self._changed.wait()

    async def messages(self, goes_on: Callable[[], bool]) -> AsyncIterator[Message]:
        """Yield messages while ``goes_on()``. Raise ``WrongCall`` if another loop takes them."""
        if self._iterated:
            raise WrongCall(f"channel {self._name}: another loop takes its messages")
        self._iterated = True
        self._changed.set()
        try:
            while goes_on():
                if self._held is None:
                    self._offered.clear()
                    await self._offered.wait()
                    continue
                message, self._held = self._held, None  # from here to the caller nothing can be cancelled
                self._handles = True
                self._note_taken()
                yield message
                self._handles = False
                self._changed.set()
        finally:
            self._iterated = self._handles = False
            self._changed.set()
