"""What people look at and change: counts, lists, dead letters."""

from penstock.outbox.store.incoming import IncomingMessages
from penstock.outbox.store.outgoing import OutgoingMessages
from penstock.outbox.store.rows import TO_LIST, Arrived, Copy, Counts, Dead, Published
from penstock.outbox.store.sums import of_spooled


class ForPeople(OutgoingMessages, IncomingMessages):
    """All that waits, and the table ``dead``."""

    @property
    def is_drained(self) -> bool:
        """Whether nothing waits, neither outgoing nor incoming."""
        return not any(self._one(f"SELECT 1 FROM {table} LIMIT 1") for table in ("deliveries", "incoming"))

    def counts(self) -> Counts:
        """Count all. Takes some 0.1 s for a million messages."""
        return Counts(
            *map(
                self._one,
                (
                    "SELECT count(DISTINCT key) FROM subscriptions",
                    "SELECT count(DISTINCT address) FROM subscriptions",
                    "SELECT count(*) FROM incoming",
                    "SELECT count(*) FROM deliveries",
                    "SELECT count(*) FROM dead",
                ),
            )
        )

    def list_dead(self, after: int = 0, rows: int = 1000) -> list[Dead]:
        """Return dead letters after the number ``after``."""
        found = self._db.execute(
            "SELECT number, id, address, outgoing, keys, data, attempts, error, at, sum FROM dead"
            " WHERE number > ? ORDER BY number LIMIT ?",
            (after, rows),
        ).fetchall()
        for *row, _, sum in found:
            self.verify("dead", sum, *row[1:])
        return [Dead._make(row[:-1])._replace(outgoing=bool(row[3])) for row in found]

    def requeue(self, number: int) -> bool:
        """Let the dead letter ``number`` wait again, at the end and without attempts; return whether it exists."""
        letter = self._db.execute(
            "DELETE FROM dead WHERE number = ? RETURNING sum, id, address, outgoing, keys, data, attempts, error",
            (number,),
        ).fetchone()
        if letter is None:
            return False
        self.verify("dead", *letter)
        _, id, address, outgoing, keys, data, *_ = letter
        if outgoing == TO_LIST:
            which = "WHERE server = ? AND name = ?"
            self._db.execute(
                "UPDATE spools SET last = last + 1, before = CASE WHEN EXISTS"
                f" (SELECT 1 FROM spooled WHERE list = id) THEN before END {which}",
                (address, keys),
            )
            list, number = self._db.execute(f"SELECT id, last FROM spools {which}", (address, keys)).fetchone()
            self._insert("spooled (list, number, data, sum)", [(list, number, data, of_spooled(list, number, data))])
        elif outgoing:
            copy = Copy(self.add_destination(address), None)
            self.publish([Published(self.last_outgoing() + 1, id, keys, data, [copy])])
        else:
            self.arrive([Arrived(self.last_incoming() + 1, id, address, keys, data)])
        return True

    def remove(self, id: bytes) -> int:
        """Remove the message ``id`` wherever it waits (incoming, outgoing, dead); return how many were removed."""
        removed = self._db.execute("DELETE FROM dead WHERE id = ?", (id,)).rowcount
        incoming = self._column("SELECT seq FROM incoming WHERE id = ?", id)
        if incoming:
            self.finish(incoming)
        removed += len(incoming)
        for seq in self._column("SELECT seq FROM messages WHERE id = ?", id):
            removed += self._db.execute(
                "DELETE FROM deliveries WHERE seq = ? AND destination IN (SELECT id FROM destinations)", (seq,)
            ).rowcount
            self._db.execute("DELETE FROM shared WHERE seq = ?", (seq,))
            self._db.execute("DELETE FROM messages WHERE seq = ?", (seq,))
        return removed

    def purge(self, what: str) -> int:
        """Remove all ``incoming``, ``outgoing`` or ``dead``; return how many. Raise ``ValueError`` for another word."""
        tables = {
            "incoming": ("incoming", "tries", "begun"),
            "outgoing": ("deliveries", "shared", "messages"),
            "dead": ("dead",),
        }
        if what not in tables:
            raise ValueError(f"{what!r}: expected one of {', '.join(tables)}")
        count = int(self._one(f"SELECT count(*) FROM {tables[what][0]}"))
        for table in tables[what]:
            self._db.execute(f"DELETE FROM {table}")
        return count
