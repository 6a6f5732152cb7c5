"""What is to be acknowledged in a queue: several calls become one."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import Fenced, Gone, WrongCall
from penstock.base.log import Log
from penstock.bus.numbers import MAX_ID
from penstock.bus.scripts import ACK

if TYPE_CHECKING:
    from penstock.bus.consumption import Consumption
    from penstock.bus.queue import Queue

MAX_ACKED: Final = 1_000
"""Maximum number of messages that one script forgets."""
_log: Final = Log("penstock.bus")


class Acks:
    """The acknowledgements of one queue."""

    def __init__(self, queue: "Queue") -> None:
        self.last_reliable: Consumption | None = None
        """The consumption that ids without one belong to."""
        self.task: asyncio.Task[None] | None = None
        """What sends them, if any are under way."""
        self._queue = queue
        self._waiting: list[tuple[Consumption | None, int, asyncio.Future[None]]] = []

    def add(self, consumption: "Consumption | None", id: Any) -> "asyncio.Future[None]":
        """Acknowledge all up to ``id`` that ``consumption`` has handed out; None is the one that runs, or the last."""
        if not isinstance(id, int) or not 0 <= id <= MAX_ID:
            raise WrongCall(f"ack({id!r}): expected the id of a message")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._queue
        if not queue.is_attached:
            future.set_exception(WrongCall(f"queue {queue.name}: expected `attach` before `ack`"))
        elif not consumption and queue.consumptions and not queue.consumptions[-1].reliable:
            future.set_result(None)
        else:
            self._waiting.append((consumption or self.last_reliable, id, future))
            if self.task is None:
                self.task = queue.bus.spawn(self._run())
        return future

    async def _run(self) -> None:
        while self._waiting:
            acks, self._waiting = self._waiting, []
            for consumption in {each for each, _, _ in acks}:
                mine = {future: id_ for each, id_, future in acks if each is consumption}
                try:
                    await self._send(consumption, max(mine.values()))
                except Exception as error:  # noqa: BLE001  # each caller gets it
                    _resolve(mine, error)
                else:
                    _resolve(mine, None)
        self.task = None

    async def _send(self, consumption: "Consumption | None", last: int) -> None:
        """Acknowledge all up to the id ``last``."""
        queue = self._queue
        named: dict[str, Any] = {"metadata": queue.keys.metadata, "toack": queue.keys.toack, "ttl": queue.seconds}
        named |= {"who": consumption.who if consumption else queue.bus.id, "most": MAX_ACKED, "last": last}
        named["handed"] = 0
        if consumption and consumption.exclusive:
            named |= {"lease": queue.lease, "messages": queue.keys.messages, "handed": consumption.ahead.handed_id}
        try:
            if consumption and consumption.is_fenced:
                raise Fenced(f"queue {queue.name}: the lease has ended, another consumer may have it")
            with suppress(Gone):
                while await queue.call(ACK, **named) == MAX_ACKED:
                    pass
        except Fenced:
            if consumption:
                consumption.note_fenced()
            raise


def _resolve(acks: "dict[asyncio.Future[None], int]", error: Exception | None) -> None:
    for future in acks:
        if not future.done():
            if error:
                future.set_exception(error)
            else:
                future.set_result(None)


def log_failure(acknowledged: "asyncio.Future[None]") -> None:
    """Log why an ``ack`` that nobody waits for has failed."""
    if not acknowledged.cancelled() and (error := acknowledged.exception()):
        _log.warning("not acknowledged", reason=str(error))
