"""Functions of the application, by the keys of the messages that they are called with."""

from collections.abc import Callable, Iterable
from inspect import isawaitable
from itertools import chain
from typing import Final

from penstock.outbox.keys import Keys, as_keys
from penstock.outbox.message import Message
from penstock.outbox.store import SEPARATOR

Function = Callable[[Message], object]
"""Returns when the message is done, or an awaitable that does; raises if it is to be tried again."""
MAX_FOUND: Final = 1000


class Handler:
    """A registered function; ``off`` removes it."""

    def __init__(
        self, handlers: "Handlers", function: Function, keys: tuple[str, ...], missing: Iterable[str] = ()
    ) -> None:
        self._handlers, self._function, self.keys = handlers, function, keys
        self._missing = set(missing)
        self._is_off = self._has_begun = False

    def off(self) -> None:
        """Call the function no more. A second call does nothing."""
        self._is_off = True
        self._handlers.remove(self)

    def __call__(self, message: Message) -> object:
        return None if self._is_off else self._function(message)


class _Last(Handler):
    """Called once, with the message after which none of the keys that are awaited is missing; again if it raises."""

    def __call__(self, message: Message) -> object:
        self._missing.difference_update(message.keys)
        if self._missing or self._has_begun or self._is_off:
            return None
        self._has_begun = True
        self._handlers.remove(self)
        return self._call(message)

    async def _call(self, message: Message) -> None:
        try:
            result = self._function(message)
            if isawaitable(result):
                await result
        except BaseException:
            self._has_begun = False
            if not self._is_off:
                self._handlers.add(self)
            raise


class Handlers:
    """All registered functions. ``changed`` is called after one has been added."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._by_key = dict[str, list[Handler]]()
        self._of_all = list[Handler]()
        self._found = dict[str, tuple[Handler, ...]]()
        """What ``of`` has returned, by keys."""

    def every(self, keys: Keys, function: Function) -> Handler:
        """Call ``function`` with each message that has one of ``keys``, once a message."""
        return self.add(Handler(self, function, as_keys(keys)))

    def once(self, keys: Keys, function: Function) -> Handler:
        """Call ``function`` once, as soon as messages with all of ``keys`` have come; with the last of them.

        Which have come is known to this process only.
        """
        found = as_keys(keys)
        return self.add(_Last(self, function, found, found))

    def any(self, keys: Keys, function: Function) -> Handler:
        """Call ``function`` once, with the first message that has one of ``keys``."""
        return self.add(_Last(self, function, as_keys(keys)))

    def all(self, function: Function) -> Handler:
        """Call ``function`` with every message."""
        handler = Handler(self, function, ())
        self._of_all.append(handler)
        self._found.clear()
        self._changed()
        return handler

    def remove(self, handler: Handler) -> None:
        self._found.clear()
        if handler in self._of_all:
            self._of_all.remove(handler)
        for key in handler.keys:
            found = self._by_key.get(key, [])
            if handler in found:
                found.remove(handler)
                if not found:
                    del self._by_key[key]

    def of(self, keys: str) -> tuple[Handler, ...]:
        """Return the handlers of a message with ``keys``, as in the store: each once, those of the first key first."""
        found = self._found.get(keys)
        if found is None:
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            by_key = (self._by_key.get(key, ()) for key in keys.split(SEPARATOR))
            found = self._found[keys] = tuple(dict.fromkeys(chain(*by_key, self._of_all)))
        return found

    def add(self, handler: Handler) -> Handler:
        for key in handler.keys:
            self._by_key.setdefault(key, []).append(handler)
        self._found.clear()
        self._changed()
        return handler
