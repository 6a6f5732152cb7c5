"""Sends to one destination what waits for it, in order, and reconnects with a back-off.

Little is in memory: what was read ahead (``AHEAD_BYTES``) and the numbers of what was sent and not acknowledged, which
the other side's window bounds. A message that is published while nothing else waits needs no reading.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, Protocol

from penstock.base.log import Log
from penstock.core.backoff import Backoff
from penstock.core.link import Outage, again
from penstock.outbox import wire
from penstock.outbox.commits import GroupCommit, Write, report
from penstock.outbox.errors import Damaged
from penstock.outbox.frames import weight_of
from penstock.outbox.ids import sent_at
from penstock.outbox.store import SEPARATOR, Outgoing, Published, Store
from penstock.outbox.trouble import NotedTrouble

AHEAD_BYTES: Final = 512 * 1024
AHEAD_ROWS: Final = 2000
SLICE_BYTES: Final = 128 * 1024
"""What is read at once, in the event loop: some 0.5 ms."""
SLICE_ROWS: Final = 250
log = Log("outbox")


class Connects(Protocol):
    """``wire.connect`` with who we are."""

    async def __call__(self, address: str) -> wire.Peer: ...


class Delivery:
    """What goes to the destination ``number``, which is at ``address``."""

    def __init__(
        self,
        address: str,
        number: int,
        connect: Connects,
        reader: Store,
        commits: GroupCommit,
        backoff: Backoff,
        settled: Callable[[object], None],
    ) -> None:
        self.address, self.number = address, number
        self._connect, self._reader, self._commits, self._backoff = connect, reader, commits, backoff
        self._settled = settled
        self._ahead = deque[Outgoing]()
        self._ahead_bytes = 0
        self._read = self._done = 0
        """The greatest seq that was read ahead, and the greatest that was acknowledged."""
        self._is_behind = True
        """Whether the store may have messages after ``_read``."""
        self._sent = deque[int]()
        self._work = asyncio.Event()
        self._work.set()
        self._is_closed = self._rests = False
        self._peer: wire.Peer | None = None
        self.error = ""
        self._outage = Outage(log, "destination away", "destination back", address=self.address)
        """Why it is not connected; empty if it is, or was never tried."""
        self._trouble = NotedTrouble(reader, commits, address)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"outbox to {address}")
        self._task.add_done_callback(report)

    @property
    def is_connected(self) -> bool:
        return self._peer is not None

    def offer(self, message: Published, keys: str | None) -> None:
        """Take a message that was just stored, after all before it; ``keys`` are those of its ``Copy``."""
        if message.seq > self._read:
            if self._is_behind or self._ahead_bytes > AHEAD_BYTES or len(self._ahead) > AHEAD_ROWS:
                self._is_behind = True
            else:
                self._append(Outgoing(message.seq, message.id, keys or message.keys, message.data))
        self._work.set()

    @property
    def is_idle(self) -> bool:
        """Whether it is connected, and nothing is under way."""
        return self._peer is not None and not self._sent and not self._work.is_set()

    def rest(self) -> None:
        """Close a connection that is idle; it is made again once there is work."""
        if self._peer is not None:
            self._rests = True
            self._peer.close()

    def forget(self) -> None:
        """Send nothing of what waits: it was removed from the store."""
        self._ahead.clear()
        self._ahead_bytes = 0
        self._sent.clear()
        self._is_closed = True
        self._task.cancel()

    async def close(self) -> None:
        """End; what was not acknowledged stays in the store."""
        self._is_closed = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Connect when there is work, and send it, for good."""
        while not self._is_closed:
            await again(
                self._session, self._outage, lasts=_lasts, mend=self._mend, backoff=self._backoff, ends_outage=False
            )

    async def _session(self) -> None:
        """Connect once there is work; return when others need the connection's room. Raise why it ends else."""
        await self._has_work()
        self._peer = peer = await self._connect(self.address)
        self._note("")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._acknowledge(peer))
                tasks.create_task(self._send(peer))
        except ExceptionGroup:
            if not self._rests and not self._is_closed:  # errors come before the cancellation of the end
                raise
        finally:
            self._rests, self._peer = False, None
            peer.close()
            self._start_again()

    async def _mend(self, error: Exception, _: bool) -> None:
        self._note(str(error))

    def _note(self, error: str) -> None:
        self.error = error
        if not self._is_closed:
            self._trouble.note(error)

    async def _has_work(self) -> None:
        while not self._ahead and not self._fill():
            self._work.clear()
            await self._work.wait()

    def _start_again(self) -> None:
        """Forget what was sent, or read ahead: it is read again, after what was acknowledged."""
        self._sent.clear()
        self._ahead.clear()
        self._ahead_bytes = 0
        self._read, self._is_behind = self._done, True

    async def _send(self, peer: wire.Peer) -> None:
        while True:
            await self._has_work()
            await peer.send(islice(self._taken(peer), SLICE_ROWS))
            await asyncio.sleep(0)  # others have their turn

    def _taken(self, peer: wire.Peer) -> Iterator[wire.MessageFrame]:
        """Yield what is read ahead, until nothing is; note each as sent."""
        largest = peer.limits.max_message_bytes
        while self._ahead or self._fill():
            row = self._ahead.popleft()
            self._ahead_bytes -= len(row.data)
            message = wire.MessageFrame(row.seq, row.id, row.keys.split(SEPARATOR), row.data, sent_at(row.id))
            if reason := _too_large(row, message, largest):
                self._write(Store.refuse, [(self.number, row.seq, reason)])
                continue
            self._sent.append(row.seq)
            yield message

    async def _acknowledge(self, peer: wire.Peer) -> None:
        while True:
            found = await peer.acknowledged()
            seqs = list[int]()
            while self._sent and self._sent[0] <= found.upto:
                seqs.append(self._sent.popleft())
            self._done = max(self._done, found.upto)
            self._outage.over()
            if found.refused:
                refused = [(self.number, seq, found.refused[seq]) for seq in seqs if seq in found.refused]
                seqs = [seq for seq in seqs if seq not in found.refused]
                self._write(Store.refuse, refused)
                log.warning(
                    "a destination refuses messages", address=self.address, reason=refused[0][2] if refused else ""
                )
            if seqs:
                self._write(Store.settle, [(self.number, seqs)])

    def _write(self, write: Write, rows: list[Any]) -> None:
        if not self._is_closed:
            self._commits.write_surely(write, rows, self._settled)

    def _fill(self) -> bool:
        """Read ahead; return whether anything is read ahead."""
        if self._is_behind:
            try:
                with self._reader.translated():
                    found = self._reader.next_outgoing(self.number, self._read, SLICE_BYTES, SLICE_ROWS)
            except Damaged as error:
                self._commits.note_damage(error)
                raise
            for each in found:
                self._append(each)
            self._is_behind = bool(found)
        return bool(self._ahead)

    def _append(self, message: Outgoing) -> None:
        self._ahead.append(message)
        self._ahead_bytes += len(message.data)
        self._read = message.seq


def _too_large(row: Outgoing, message: wire.MessageFrame, largest: int) -> str:
    """Return why the peer would not take ``message``; empty if it would."""
    if len(row.data) + 8 * len(row.keys) > largest:
        try:
            weight_of(message, largest)
        except ValueError as error:
            return str(error)
    return ""


def _lasts(error: Exception) -> bool:
    """Return False for what passes by itself, or by what is done at the other end, which is waited for."""
    return not isinstance(error, wire.WireError | ValueError | Damaged)
