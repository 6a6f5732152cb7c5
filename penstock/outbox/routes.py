"""Who is subscribed to what, in memory, as the store has it."""

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.outbox.store import SEPARATOR, Copy

MAX_FOUND: Final = 256


def bytes_of(keys: Iterable[str]) -> int:
    return sum(len(key.encode()) for key in keys)


class Routes:
    """Numbers of destinations by key."""

    def __init__(self) -> None:
        self._by_key = dict[str, dict[int, Copy]]()
        self._by_number = dict[int, set[str]]()
        self._count = 0
        self.bytes = 0
        """Of the keys of all subscriptions."""
        self._found = dict[tuple[str, ...], tuple[Copy, ...]]()
        """What ``copies`` has returned, by keys."""

    def __len__(self) -> int:
        """Return the number of subscriptions."""
        return self._count

    @property
    def keys(self) -> Iterable[str]:
        return self._by_key.keys()

    @property
    def subscribers(self) -> Iterable[int]:
        return self._by_number.keys()

    def count(self, number: int) -> int:
        """Return how many keys the destination ``number`` is subscribed to."""
        return len(self._by_number.get(number, ()))

    def new(self, number: int, keys: Iterable[str]) -> set[str]:
        """Return those of ``keys`` to which the destination ``number`` is not subscribed."""
        return set(keys).difference(self._by_number.get(number, ()))

    def add(self, number: int, keys: Iterable[str]) -> None:
        new = self.new(number, keys)
        self._count += len(new)
        self.bytes += bytes_of(new)
        self._found.clear()
        for key in keys:
            self._by_key.setdefault(key, {})[number] = Copy(number, None)
            self._by_number.setdefault(number, set()).add(key)

    def remove(self, number: int, keys: Iterable[str] | None = None) -> None:
        """Remove ``keys`` of the destination ``number``; None for all."""
        mine = self._by_number.get(number, set())
        self._found.clear()
        for key in list(mine if keys is None else mine.intersection(keys)):
            mine.discard(key)
            self._count -= 1
            self.bytes -= bytes_of([key])
            found = self._by_key[key]
            found.pop(number, None)
            if not found:
                del self._by_key[key]
        if not mine:
            self._by_number.pop(number, None)

    def copies(self, keys: tuple[str, ...]) -> tuple[Copy, ...]:
        """Return a copy, with all keys that match, for each destination that is subscribed to one of ``keys``.

        The same object for the same keys, mostly: the store writes copies of such messages together.
        """
        found = self._found.get(keys)
        if found is None:
            one = self._by_key.get(keys[0], {}) if len(keys) == 1 else None
            found = tuple(self._copies(keys) if one is None else one.values())
            if len(self._found) >= MAX_FOUND:
                self._found.clear()
            self._found[keys] = found
        return found

    def _copies(self, keys: tuple[str, ...]) -> Iterator[Copy]:
        matching = dict[int, list[str]]()
        for key in keys:
            for number in self._by_key.get(key, ()):
                matching.setdefault(number, []).append(key)
        for number, found in matching.items():
            yield Copy(number, None if len(found) == len(keys) else SEPARATOR.join(found))
