"""``penstock queue tail``: show what happens to the tasks of a queue."""

import asyncio
import json as json_
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli._frame import Failed, Json, run
from penstock.cli._streams import Output
from penstock.cli._text import clock, shown
from penstock.cli.queue._queues import DEFAULT_URL, Service, TokenAt, Url, queue_of, status_fields

if TYPE_CHECKING:
    from penstock.hqueue import Queue, Status

PATIENCE_SECONDS: Final = 60
"""Seconds that it waits for a service that goes away."""
PAGE: Final = 100
MAX_FOLLOWED: Final = 1_000
"""Maximum number of tasks that it looks at, the newest."""


def tail(
    service: Service,
    every: Annotated[float, typer.Option(min=0.1, metavar="S", help="Seconds from one look to the next.")] = 1.0,
    url: Url = DEFAULT_URL,
    token: TokenAt = None,
    json: Json = False,
) -> None:
    """Show each new task of a queue, and each change of its state, until ctrl-C.

    One line a change: the time (UTC), id, index, state and attempt, and why it is dead. Tasks that wait or are held
    when it begins are followed, too; of the newest 1,000. States between two looks are not seen.
    """
    run(_tail(service, every, url, token, json))


async def _tail(service: str, every: float, url: str, token: str | None, as_json: bool) -> int:
    stop = asyncio.Event()
    async with queue_of(service, url, token) as queue:
        await queue.info()  # fail at once if the service is not there
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    output = Output(sys.stdout.fileno(), stop)
    async with queue_of(service, url, token, PATIENCE_SECONDS) as queue:
        followed = Followed(queue)
        await followed.changes()
        typer.echo(f"following {shown(service)}; ctrl-C ends it", err=True)
        while not stop.is_set() and not output.reader_is_gone():
            changes = await _unless(stop, followed)
            if await output.write([_line(each, as_json) for each in changes]) < len(changes):
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await stop.wait()
    if output.error and not isinstance(output.error, BrokenPipeError):
        raise Failed(f"cannot write to standard output: {output.error.strerror}")
    return 0


class Followed:
    """The tasks of a queue that have not ended, and what has changed since the last look."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue
        self._known = dict[str, tuple[str, int]]()
        self._after: int | None = None
        """The index behind which to look."""

    async def changes(self) -> list["Status"]:
        """Return the tasks whose state or attempt has changed; all that exist at first."""
        info = await self._queue.info()
        if self._after is None:
            self._after = min((each.index for each in info.held), default=info.index + 1) - 1
        self._after = max(self._after, info.index - MAX_FOLLOWED)
        tasks = [task async for task in _pages(self._queue, self._after)]
        changed = [task for task in tasks if self._known.get(task.id) != (task.state, task.attempt)]
        self._known = {task.id: (task.state, task.attempt) for task in tasks}
        self._after = _first_after(tasks, self._after)
        return changed


def _first_after(tasks: Iterable["Status"], after: int) -> int:
    """Return the index before the first task that has not ended."""
    for task in tasks:
        if not task.has_ended:
            return after
        after = task.index
    return after


async def _pages(queue: "Queue", after: int) -> AsyncIterator["Status"]:
    while page := await queue.statuses(after=after, most=PAGE):
        for task in page:
            yield task
        after = page[-1].index
        if len(page) < PAGE:
            return


async def _unless(stop: asyncio.Event, followed: Followed) -> list["Status"]:
    """Return the changes; none if a stop comes first."""
    looking, stopping = asyncio.ensure_future(followed.changes()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return looking.result() if looking.done() else []
    finally:
        for task in (looking, stopping):
            task.cancel()
        await asyncio.gather(looking, stopping, return_exceptions=True)


def _line(status: "Status", as_json: bool) -> bytes:
    if as_json:
        return json_.dumps(status_fields(status)).encode() + b"\n"
    words = [status.id, str(status.index), status.state, f"attempt {status.attempt}", shown(status.reason or "")]
    return "\t".join([clock(time.time())[11:], *filter(None, words)]).encode() + b"\n"
