"""Who gets what: destinations, their subscriptions here, and ours there."""

from collections.abc import Iterable, Iterator, Sequence

from penstock.outbox.store.rows import PINNED
from penstock.outbox.store.statements import Statements


class Destinations(Statements):
    """The tables ``destinations``, ``subscriptions`` and ``subscribed``."""

    def destinations(self) -> dict[str, int]:
        return dict(self._db.execute("SELECT address, id FROM destinations"))

    def add_destination(self, address: str, number: int | None = None) -> int:
        """Return the number of ``address``; if it is new, ``number`` or the next that is free."""
        self._db.execute("INSERT OR IGNORE INTO destinations VALUES (?, ?)", (number, address))
        return int(self._one("SELECT id FROM destinations WHERE address = ?", address))

    def leave(self, addresses: Sequence[str]) -> None:
        """Remove the subscriptions of ``addresses`` here, and the note of ours there."""
        for address in addresses:
            self.remove_subscriptions(address)
            self.remove_subscribed(address)

    def pinned(self) -> dict[str, bytes]:
        """Return the identity of the store at each address that has subscribed."""
        found = self._db.execute("SELECT name, value FROM meta WHERE name BETWEEN ? AND ?", (PINNED, PINNED + "\x7f"))
        return {name.removeprefix(PINNED): bytes(value) for name, value in found}

    def pin(self, address: str, store: bytes) -> None:
        """Note that ``address`` belongs to ``store``, unless it belongs to one already."""
        if self._one("SELECT 1 FROM meta WHERE name = ?", PINNED + address) is None:
            self.put(PINNED + address, store)

    def trust(self, addresses: Sequence[str]) -> int:
        """Let each of ``addresses`` belong to the store that subscribes next with it; return how many had one."""
        found = [self._db.execute("DELETE FROM meta WHERE name = ?", (PINNED + each,)).rowcount for each in addresses]
        return sum(found)

    def subscriptions(self) -> Iterator[tuple[str, str]]:
        """Yield (key, address) of all who are subscribed here."""
        return self._db.execute("SELECT key, address FROM subscriptions ORDER BY key, address")

    def add_subscriptions(self, address: str, keys: Iterable[str]) -> None:
        self.add_destination(address)
        self._db.executemany("INSERT OR IGNORE INTO subscriptions VALUES (?, ?)", [(key, address) for key in keys])

    def remove_subscriptions(self, address: str, keys: Iterable[str] | None = None) -> None:
        """Remove ``keys`` of ``address``; None for all."""
        self._remove("subscriptions", address, keys)

    def subscribed(self) -> Iterator[tuple[str, str]]:
        """Yield (address, key) of what we have subscribed to."""
        return self._db.execute("SELECT address, key FROM subscribed ORDER BY address, key")

    def add_subscribed(self, address: str, keys: Iterable[str]) -> None:
        rows = [(key, address) for key in keys]
        self._db.executemany("INSERT OR IGNORE INTO subscribed (key, address) VALUES (?, ?)", rows)

    def remove_subscribed(self, address: str, keys: Iterable[str] | None = None) -> None:
        self._remove("subscribed", address, keys)

    def _remove(self, table: str, address: str, keys: Iterable[str] | None) -> None:
        if keys is None:
            self._db.execute(f"DELETE FROM {table} WHERE address = ?", (address,))
        else:
            self._db.executemany(f"DELETE FROM {table} WHERE key = ? AND address = ?", [(key, address) for key in keys])
