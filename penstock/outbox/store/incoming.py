"""Messages that wait for handlers, what is known of their attempts, and marks of duplicates."""

from collections.abc import Iterable, Sequence
from typing import Any, Final
from zlib import crc32

from penstock.outbox.store.rows import Arrived, Failed, Waiting
from penstock.outbox.store.statements import ROWS, Statements, among, listed
from penstock.outbox.store.sums import of_arrived, of_until, summed

TOGETHER: Final = 1
ALONE: Final = 2
"""Suspects: those that began with others when the process ended, and those among which it ended again, or alone."""


class IncomingMessages(Statements):
    """The tables ``incoming``, ``seen``, ``begun`` and ``tries``."""

    def last_incoming(self) -> int:
        """Return the greatest ``seq`` of an incoming message, or 0."""
        return int(self._one("SELECT coalesce(max(seq), 0) FROM incoming"))

    def unseen(self, ids: Sequence[bytes]) -> set[bytes]:
        """Return those of ``ids`` that were not marked as seen, or so long ago that it is forgotten."""
        found = set(ids)
        listed = list(found)
        for start in range(0, len(listed), ROWS[0]):
            part = listed[start : start + ROWS[0]]
            marks = ",".join("?" * len(part))
            for row in self._db.execute(f"SELECT sum, id, until FROM seen WHERE id IN ({marks})", part).fetchall():
                self.verify("seen", *row)
                if row[2] > self.clock:
                    found.discard(row[1])
        return found

    def arrive(self, messages: Sequence[Arrived]) -> None:
        """Store new messages."""
        self._insert("incoming (seq, id, sender, keys, data, sum)", summed(of_arrived, messages))

    def see(self, ids: Iterable[bytes], until: float) -> None:
        """Mark ``ids`` as seen until then."""
        self._insert("seen (id, until, sum)", _marks(ids, until), "INSERT OR REPLACE")

    def see_all(self, ids: Sequence[bytes], until: float) -> bool:
        """Mark ``ids`` as seen if none was; return whether they are marked now."""
        self._db.execute("SAVEPOINT seeing")
        count = self._insert("seen (id, until, sum)", _marks(ids, until), "INSERT OR IGNORE")
        if count != len(ids):
            self._db.execute("ROLLBACK TO seeing")
        self._db.execute("RELEASE seeing")
        return count == len(ids)

    def forget_seen(self, after: bytes, rows: int) -> bytes | None:
        """Look at ``rows`` marks whose ids follow ``after``, remove those that have ended; return the last id.

        None at the end of the table.
        """
        now, statement = self.clock, "SELECT sum, id, until FROM seen WHERE id > ? ORDER BY id LIMIT ?"
        found = self._db.execute(statement, (after, rows)).fetchall()
        begins = {until: of_until(until) for _, _, until in found}
        for sum, id, until in found:
            if sum != crc32(id, begins[until]):
                self.verify("seen", sum, id, until)
        last = found[-1][1] if len(found) == rows else None
        if any(until <= now for until in begins):
            upto = b"\xff" * 17 if last is None else last
            self._db.execute("DELETE FROM seen WHERE id > ? AND id <= ? AND until <= ?", (after, upto, now))
        return last

    def next_incoming(self, after: int, bytes: int, rows: int) -> list[Waiting]:
        """Return messages after the seq ``after`` of which no attempt has begun: at least one, about ``bytes``."""
        return self._incoming("i.seq > ? AND t.seq IS NULL ORDER BY i.seq LIMIT ?", bytes, after, rows)

    def due_incoming(self, suspect: int, bytes: int, rows: int, but: Iterable[int] = ()) -> list[Waiting]:
        """Return messages whose next attempt is due, the longest due first, without the seqs ``but``.

        ``suspect``: ``TOGETHER``, ``ALONE``, or 0 for those that failed.
        """
        return self._incoming(
            "t.suspect = ? AND t.due <= ? AND t.seq NOT IN (SELECT value FROM json_each(?))"
            " ORDER BY t.due, t.seq LIMIT ?",
            bytes,
            suspect,
            self.clock,
            listed(but),
            rows,
            join="tries t CROSS JOIN incoming i USING (seq)",
        )

    def _incoming(
        self, where: str, bytes: int, *arguments: Any, join: str = "incoming i LEFT JOIN tries t USING (seq)"
    ) -> list[Waiting]:
        cursor = self._db.execute(
            "SELECT i.seq, i.id, i.sender, i.keys, i.data, coalesce(t.attempts, 0), coalesce(t.suspect, 0),"
            f" coalesce(t.error, ''), i.sum FROM {join} WHERE {where}",
            arguments,
        )
        found = list[Waiting]()
        for seq, id, sender, keys, data, attempts, suspect, error, sum in cursor:
            self.verify("incoming", sum, seq, id, sender, keys, data)
            found.append(Waiting(seq, id, sender, keys, data, attempts, bool(suspect), error))
            bytes -= len(data)
            if bytes <= 0:
                break
        cursor.close()
        return found

    def next_due(self, but: Iterable[int] = ()) -> float | None:
        """Return when (``clock``) the next failed message is due, without the seqs ``but``; None if there is none."""
        found = self._one(
            "SELECT due FROM tries WHERE suspect = 0 AND due < 9e999"
            " AND seq NOT IN (SELECT value FROM json_each(?)) ORDER BY due LIMIT 1",
            listed(but),
        )
        return None if found is None else float(found)

    def begin(self, runs: Sequence[tuple[int, int, bool]]) -> None:
        """Note that handlers of the messages from a first to a last seq are about to run; whether of one message alone.

        If the process ends before ``ended``, that is an attempt of a message that was alone. Of several it is not known
        which is to blame: they are suspects, and no attempt is counted.
        """
        self._db.executemany("INSERT OR REPLACE INTO begun VALUES (?, ?, ?)", runs)

    def ended(self, runs: Sequence[tuple[int, int, bool]]) -> None:
        """The attempts of ``begin`` have ended, those that failed were told with ``fail``."""
        self._db.executemany("DELETE FROM begun WHERE first = ?", [run[:1] for run in runs])

    def finish(self, seqs: Sequence[int]) -> None:
        """Remove incoming messages, by seq, whose handlers have returned."""
        where, arguments = among(sorted(seqs))
        self._db.execute(f"DELETE FROM incoming WHERE seq {where}", arguments)
        self._db.execute(f"DELETE FROM tries WHERE seq {where}", arguments)

    def park(self, seqs: Sequence[int]) -> None:
        """Let messages that are due wait until ``unpark``: they have no handler."""
        self._db.execute("UPDATE tries SET due = 9e999 WHERE seq IN (SELECT value FROM json_each(?))", (listed(seqs),))

    def unpark(self, _: Sequence[object]) -> None:
        self._db.execute("UPDATE tries SET due = 0 WHERE due = 9e999")

    def fail(self, failed: Sequence[Failed]) -> None:
        for each in failed:
            if each.due is None:
                self._bury(each)
            else:
                self._db.execute("INSERT OR REPLACE INTO tries VALUES (?, ?, ?, 0, ?)", (*each[:3], each.error))

    def _bury(self, failed: Failed) -> None:
        row = self._db.execute(
            "SELECT sum, seq, id, sender, keys, data FROM incoming WHERE seq = ?", (failed.seq,)
        ).fetchone()
        if row is not None:
            self.verify("incoming", *row)
            _, _, id, sender, keys, data = row
            self.bury(id, sender, 0, keys, data, failed.attempts, failed.error)
        self.finish([failed.seq])

    def _suspect_begun(self) -> None:
        """Make suspects of the messages whose handlers ran when the process ended; they are due at once."""
        for first, last, alone in self._db.execute("SELECT first, last, alone FROM begun").fetchall():
            self._db.execute(
                "INSERT INTO tries SELECT seq, ?, 0, ?, 'the process ended' FROM incoming WHERE seq BETWEEN ? AND ?"
                " ON CONFLICT (seq) DO UPDATE SET"
                " attempts = attempts + excluded.attempts, due = 0, suspect = ?, error = excluded.error",
                (alone, ALONE if alone else TOGETHER, first, last, ALONE),
            )
        self._db.execute("DELETE FROM begun")

    def acquit(self) -> None:
        """Make suspects messages as all others, of which no attempt has begun."""
        self._db.execute("DELETE FROM tries WHERE suspect > 0")


def _marks(ids: Iterable[bytes], until: float) -> list[tuple[bytes, float, int]]:
    begin = of_until(until)
    return [(id, until, crc32(id, begin)) for id in ids]
