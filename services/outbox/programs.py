"""The programs at the socket: each connection either publishes, or takes what comes."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from penstock.base.log import Log, Seldom
from penstock.outbox import Outbox
from services.outbox.handover import Handover, Waiting
from services.outbox.lines import Lines, Unexpected, handed, number_in, parsed, written
from services.outbox.publisher import Publisher, RefusedMessage, Sources

CHUNK: Final = 262_144
"""Bytes that are read at once: the messages in them are stored together."""
log = Log("outbox")


class Programs:
    """``serve`` runs for each connection. ``handover`` has what may be taken; None if it goes to a list.

    ``most`` is how many messages a program may have in hand.
    """

    def __init__(self, outbox: Outbox, handover: Handover | None, unsubscribed: str, most: int) -> None:
        self._outbox, self._handover, self._unsubscribed, self._most = outbox, handover, unsubscribed, most
        self._sources, self._warn = Sources(outbox), Seldom(log.warning)
        self._tasks = dict[asyncio.Task[None], bool]()
        """Those of connections, and whether they take."""
        self._has_ended = False

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """Serve a program until it goes, or says what is not understood, or refused."""
        task = asyncio.current_task()
        assert task
        if self._has_ended:
            writer.close()  # it was accepted while the service ends
            return
        self._tasks[task] = False
        try:
            for problem in await self._problems(reader, writer, task):
                writer.write(written(problem))
        except asyncio.CancelledError:
            pass  # the service ends; Python 3.11 logs a traceback if this leaves
        finally:
            del self._tasks[task]
            writer.close()

    async def _problems(
        self, reader: StreamReader, writer: StreamWriter, task: "asyncio.Task[None]"
    ) -> list[dict[str, Any]]:
        """Serve; return what is wrong with what the program has said."""
        found = list[dict[str, Any]]()
        try:
            await self._serve(reader, writer, task)
        except* RefusedMessage as refused:
            for error in refused.exceptions:
                assert isinstance(error, RefusedMessage)
                self._warn("a message of a program is refused", reason=str(error))
                found.append({"refused": error.number, "reason": str(error)})
        except* Unexpected as unexpected:
            for each in unexpected.exceptions:
                self._warn("a program is not understood", reason=str(each))
                found.append({"error": str(each)})
        except* OSError:
            pass  # the program has gone
        return found

    async def _serve(self, reader: StreamReader, writer: StreamWriter, task: "asyncio.Task[None]") -> None:
        received = _lines(reader)
        first = await anext(received, None)
        if first is None:
            return
        fields = parsed(first[0])
        if "take" not in fields:
            publisher = Publisher(self._outbox, self._sources, self._unsubscribed, writer)
            await publisher.take(first)
            async for lines in received:
                await publisher.take(lines)
            return
        if self._handover is None:
            raise Unexpected("take: what comes goes to the list that out names")
        self._tasks[task] = True
        taker = Taker(self._handover, writer, number_in(fields, "take", self._most))
        async with asyncio.TaskGroup() as tasks:
            handing = tasks.create_task(taker.hand())
            try:
                taker.finish(first[1:])
                async for lines in received:
                    taker.finish(lines)
            finally:
                handing.cancel()
                taker.leave()

    async def end(self, *, taking: bool) -> None:
        """End the connections that publish, or those that take, and take no new ones; answer what is being stored."""
        self._has_ended = True
        tasks = [task for task, takes in self._tasks.items() if takes is taking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Taker:
    """One connection that takes at most ``most`` messages at a time."""

    def __init__(self, handover: Handover, writer: StreamWriter, most: int) -> None:
        self._handover, self._writer = handover, writer
        self._room = asyncio.Semaphore(most)
        self._in_hand = dict[int, Waiting]()
        self._count = 0

    async def hand(self) -> None:
        """Hand messages to the program until cancelled."""
        while True:
            await self._room.acquire()
            waiting = await self._handover.next()
            self._count += 1
            self._in_hand[self._count] = waiting
            self._writer.write(handed(self._count, waiting.message))
            await self._writer.drain()

    def finish(self, lines: Sequence[bytes]) -> None:
        """Note what the program says of messages. Raise ``Unexpected``."""
        for line in lines:
            fields = parsed(line)
            failed = "failed" in fields
            number = number_in(fields, "failed" if failed else "done")
            waiting = self._in_hand.pop(number, None)
            if waiting is None:
                raise Unexpected(f"message {number} is not in hand")
            waiting.finish(str(fields.get("reason", "the program gave no reason")) if failed else None)
            self._room.release()

    def leave(self) -> None:
        """Let other programs have what is in hand."""
        for waiting in self._in_hand.values():
            self._handover.give_back(waiting)
        self._in_hand.clear()


async def _lines(reader: StreamReader) -> AsyncIterator[list[bytes]]:
    """Yield what comes, some lines at a time, until the program has closed. Raise ``Unexpected``."""
    lines = Lines()
    while chunk := await reader.read(CHUNK):
        if found := lines.add(chunk):
            yield found
