"""Messages that wait for destinations."""

from collections.abc import Sequence
from typing import Any, Final

from penstock.outbox.store.destinations import Destinations
from penstock.outbox.store.rows import PINNED, TROUBLE, Copy, Outgoing, Published
from penstock.outbox.store.statements import STEP_ROWS, among, damaged
from penstock.outbox.store.sums import of_message

ALIKE_ROWS: Final = 8
"""Messages with the same copies, from which on a statement for each copy is cheaper than the rows."""


class OutgoingMessages(Destinations):
    """The tables ``messages``, ``deliveries`` and ``shared``."""

    def forget(self, addresses: Sequence[str]) -> None:
        """Remove ``addresses``: their subscriptions here, what waits for them, and the note of ours there."""
        for address in addresses:
            number = self._one("SELECT id FROM destinations WHERE address = ?", address)
            if number is not None:
                self.leave([address])
                while self._drop(number):
                    pass
                self._db.execute("DELETE FROM destinations WHERE id = ?", (number,))
                self._db.execute("DELETE FROM meta WHERE name IN (?, ?)", (TROUBLE + address, PINNED + address))

    def last_outgoing(self) -> int:
        """Return the greatest ``seq`` of an outgoing message, or 0."""
        return int(self._one("SELECT coalesce(max(seq), 0) FROM messages"))

    def publish(self, messages: Sequence[Published]) -> None:
        """Store ``messages``, whose seqs rise."""
        rows = [(seq, id, keys, data, of_message(seq, id, keys, data)) for seq, id, keys, data, _ in messages]
        self._insert("messages (seq, id, keys, data, sum)", rows)
        if len(messages) >= ALIKE_ROWS:
            first, last, copies = messages[0].seq, messages[-1].seq, messages[0].copies
            if last - first == len(messages) - 1 and all(message.copies is copies for message in messages):
                self._copy(copies, first, last)
                return
        self._insert(
            "deliveries (destination, seq, keys)", [(c.destination, m.seq, c.keys) for m in messages for c in m.copies]
        )
        shared = [(m.seq, len(m.copies)) for m in messages if len(m.copies) > 1]
        self._insert("shared (seq, copies)", shared)

    def _copy(self, copies: Sequence[Copy], first: int, last: int) -> None:
        """Let ``copies`` of all messages from ``first`` to ``last`` wait."""
        which = "FROM messages WHERE seq BETWEEN ? AND ?"
        for destination, keys in copies:
            self._db.execute(f"INSERT INTO deliveries SELECT ?, seq, ? {which}", (destination, keys, first, last))
        if len(copies) > 1:
            self._db.execute(f"INSERT INTO shared SELECT seq, ? {which}", (len(copies), first, last))

    def send(self, messages: Sequence[tuple[str, Published]]) -> None:
        """As ``publish``, for messages with one copy each, to an address that may be new."""
        for address, message in messages:
            self.add_destination(address, message.copies[0].destination)
        self.publish([message for _, message in messages])

    def ask(self, asked: Sequence[tuple[str, Published, Sequence[str] | None, bool]]) -> None:
        """Send commands (address, message, keys or None for all, whether to subscribe), and note what is subscribed."""
        self.send([(address, message) for address, message, _, _ in asked])
        for address, _, keys, subscribes in asked:
            if subscribes:
                self.add_subscribed(address, keys or ())
            else:
                self.remove_subscribed(address, keys)

    def waits_for(self, destination: int) -> bool:
        """Return whether a message waits for ``destination``."""
        return self._one("SELECT 1 FROM deliveries WHERE destination = ? LIMIT 1", destination) is not None

    def next_outgoing(self, destination: int, after: int, bytes: int, rows: int = 500) -> list[Outgoing]:
        """Return what waits for ``destination`` after the seq ``after``: at least one message, about ``bytes``."""
        found = list[Outgoing]()
        cursor = self._db.execute(
            "SELECT d.seq, m.id, m.keys, m.data, m.sum, d.keys FROM deliveries d LEFT JOIN messages m USING (seq)"
            " WHERE d.destination = ? AND d.seq > ? ORDER BY d.seq LIMIT ?",
            (destination, after, rows),
        )
        for seq, id, keys, data, sum, mine in cursor:
            if id is None:
                raise damaged(f"{self.path} is damaged: message {seq}, which waits for a destination, is gone")
            self.verify("messages", sum, seq, id, keys, data)
            found.append(Outgoing(seq, id, mine or keys, data))
            bytes -= len(data)
            if bytes <= 0:
                break
        cursor.close()
        return found

    def settle(self, acknowledged: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Remove messages of destinations, by seq and rising; and those that no destination waits for any more."""
        for destination, seqs in acknowledged:
            self._settle(destination, seqs)

    def _settle(self, destination: int, seqs: Sequence[int]) -> None:
        where, arguments = among(seqs)
        mine = f"FROM deliveries WHERE destination = ? AND seq {where}"
        if self._one(f"SELECT count(*) {mine}", destination, *arguments) != len(seqs):
            # Some were removed by other means, and are not counted any more.
            where, arguments = among(self._column(f"SELECT seq {mine} ORDER BY seq", destination, *arguments))
            mine = f"FROM deliveries WHERE destination = ? AND seq {where}"
        self._db.execute(f"DELETE {mine}", (destination, *arguments))
        self._uncount(where, arguments)

    def _uncount(self, where: str, arguments: tuple[Any, ...]) -> None:
        """Remove messages of which one copy less is waiting now, and that was the last."""
        if self._db.execute(f"UPDATE shared SET copies = copies - 1 WHERE seq {where}", arguments).rowcount:
            self._db.execute(
                f"DELETE FROM messages WHERE seq {where} AND NOT EXISTS"
                " (SELECT 1 FROM shared s WHERE s.seq = messages.seq AND s.copies > 0)",
                arguments,
            )
            self._db.execute(f"DELETE FROM shared WHERE seq {where} AND copies < 1", arguments)
        else:
            self._db.execute(f"DELETE FROM messages WHERE seq {where}", arguments)

    def drop(self, destinations: Sequence[int]) -> None:
        """Remove up to ``STEP_ROWS`` messages that wait for each of ``destinations``."""
        for destination in destinations:
            self._drop(destination)

    def _drop(self, destination: int) -> int:
        seqs = self._column(
            "SELECT seq FROM deliveries WHERE destination = ? ORDER BY seq LIMIT ?", destination, STEP_ROWS
        )
        if seqs:
            self._settle(destination, seqs)
        return len(seqs)

    def refuse(self, refused: Sequence[tuple[int, int, str]]) -> None:
        """Make messages (destination, seq, reason) dead letters."""
        for destination, seq, reason in refused:
            row = self._db.execute(
                "SELECT a.address, coalesce(d.keys, m.keys), m.sum, m.seq, m.id, m.keys, m.data"
                " FROM deliveries d JOIN messages m USING (seq) JOIN destinations a ON a.id = d.destination"
                " WHERE d.destination = ? AND d.seq = ?",
                (destination, seq),
            ).fetchone()
            if row is not None:
                address, keys, sum, _, id, _, data = row
                self.verify("messages", sum, *row[3:])
                self.bury(id, address, 1, keys, data, 1, reason)
            self._settle(destination, [seq])
