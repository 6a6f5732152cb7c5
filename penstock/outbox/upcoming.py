"""What handlers get next: what has come, what is due once more, and suspects.

In memory is what was read ahead (``AHEAD_BYTES``) and the seqs of what runs. Messages without a handler stay in the
store; once a handler is added, all are looked at again.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from penstock.outbox.commits import GroupCommit
from penstock.outbox.handlers import Handlers
from penstock.outbox.store import ALONE, TOGETHER, Arrived, Failed, Store, Waiting

AHEAD_BYTES: Final = 8 * 1024 * 1024
AHEAD_ROWS: Final = 8000
SLICE_BYTES: Final = 128 * 1024
SLICE_ROWS: Final = 250
MOST_SUSPECTS: Final = 50


class Upcoming:
    """Incoming messages that have a handler; ``news`` is set when there may be some that can begin."""

    def __init__(self, reader: Store, commits: GroupCommit, handlers: Handlers) -> None:
        self._reader, self._commits, self._handlers = reader, commits, handlers
        self.news = asyncio.Event()
        self._ahead = deque[Waiting]()
        self._ahead_bytes = 0
        self._read = 0
        self.is_behind = True
        """Whether the store may have messages after ``_read``."""
        self.in_hand = set[int]()
        """What was read ahead or has begun, and is not removed from the store yet."""
        self._suspects = set[int]()
        self._may_have_suspects = True
        self._due = reader.next_due()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Wake nobody any more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def arrived(self, messages: Sequence[Arrived]) -> None:
        """Take messages that were just stored."""
        for each in messages:
            if each.seq <= self._read:
                continue
            if self.is_behind or each.seq != self._read + 1 or self._is_full:
                self.is_behind = True
                break
            self._append(Waiting(*each, 0, False, ""))
        self.news.set()

    def next(self, most: int) -> list[list[Waiting]]:
        """Return what should begin now, about ``most`` messages: each list may begin in one write.

        A message that is due, or whose turn it is to run alone, is a list of its own. All are in hand now.
        """
        batches = [[each] for each in self._next_due(most)]
        batches += [batch for batch in (self._next_suspects(), self._next_batch(most)) if batch]
        for batch in batches:
            self.in_hand.update(each.seq for each in batch)
        return batches

    async def wait(self) -> None:
        """Wait for news, or until the next message is due; not at all if the store has more to read."""
        if self.is_behind:
            await asyncio.sleep(0)
        else:
            self._wait_for_due()
            await self.news.wait()

    def start_again(self) -> None:
        """Look at all messages again: a handler was added."""
        if self._is_closed:
            return
        for each in self._ahead:
            self.in_hand.discard(each.seq)
        self._ahead.clear()
        self._ahead_bytes = 0
        self._read, self.is_behind = 0, True
        self._commits.write_surely(Store.unpark, [None], self._unparked)

    def removed(self, seqs: Sequence[int]) -> None:
        """Know that messages are no longer in the store."""
        self.in_hand.difference_update(seqs)
        self._suspects_ended(seqs)

    def put_back(self, seq: int) -> None:
        """Let a message wait that cannot run: its handlers were removed after it began."""
        self.removed([seq])
        self._unparked(None)

    def failed(self, failed: Sequence[Failed]) -> None:
        """Know that attempts have failed, and are noted in the store."""
        self.removed([each.seq for each in failed])
        dues = [each.due for each in failed if each.due is not None]
        if dues and (self._due is None or min(dues) < self._due):
            self._due = min(dues)
            self._wait_for_due()

    @property
    def _is_full(self) -> bool:
        return self._ahead_bytes > AHEAD_BYTES or len(self._ahead) > AHEAD_ROWS

    def _append(self, message: Waiting) -> None:
        self._ahead.append(message)
        self.in_hand.add(message.seq)
        self._ahead_bytes += len(message.data)
        self._read = message.seq

    def _fill(self) -> None:
        """Read a slice of the store, and keep what has a handler."""
        found = self._reader.next_incoming(self._read, SLICE_BYTES, SLICE_ROWS)
        for each in found:
            if each.seq not in self.in_hand and self._handlers.of(each.keys):
                self._append(each)
            self._read = each.seq
        self.is_behind = bool(found)

    def _next_batch(self, most: int) -> list[Waiting]:
        """Return messages with handlers of which no attempt has begun, at most ``most``."""
        found = list[Waiting]()
        while len(found) < most:
            if not self._ahead and self.is_behind:
                self._fill()
            if not self._ahead:
                break
            message = self._ahead.popleft()
            self._ahead_bytes -= len(message.data)
            if self._handlers.of(message.keys):
                found.append(message)
            else:
                self.in_hand.discard(message.seq)
        return found

    def _next_due(self, most: int) -> list[Waiting]:
        """Return messages with handlers whose next attempt is due."""
        now = self._reader.clock
        if self._due is None or self._due > now:
            return []
        found = self._reader.due_incoming(0, SLICE_BYTES, most, self.in_hand)
        self._due = self._reader.next_due(self.in_hand) if len(found) < most else now
        return self._handled(found)

    def _next_suspects(self) -> list[Waiting]:
        """Return the suspects that may run now: none while others do, one that is to run alone, or some together."""
        if not self._may_have_suspects or self._suspects:
            return []
        found = self._reader.due_incoming(ALONE, SLICE_BYTES, 1, self.in_hand)
        found = found or self._reader.due_incoming(TOGETHER, SLICE_BYTES, MOST_SUSPECTS, self.in_hand)
        self._may_have_suspects = bool(found)
        handled = self._handled(found)
        self._suspects.update(each.seq for each in handled)
        return handled

    def _handled(self, messages: list[Waiting]) -> list[Waiting]:
        """Return those with a handler; the others wait in the store until one is added."""
        parked = [each.seq for each in messages if not self._handlers.of(each.keys)]
        if parked:
            self._due = None
            self._commits.write_surely(Store.park, parked, self._rescheduled)
        return [each for each in messages if each.seq not in parked] if parked else messages

    def _unparked(self, _: object) -> None:
        self._may_have_suspects = True
        self._rescheduled()

    def _rescheduled(self, _: object = None) -> None:
        self._due = self._reader.next_due(self.in_hand)
        self._wait_for_due()
        self.news.set()

    def _wait_for_due(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due is not None and not self._is_closed:
            self._timer = self._loop.call_later(max(0.0, self._due - self._reader.clock), self.news.set)

    def _suspects_ended(self, seqs: Iterable[int]) -> None:
        if self._suspects:
            self._suspects.difference_update(seqs)
            if not self._suspects:
                self.news.set()
