"""``penstock bus tail``: show the messages of a queue and leave them there."""

import asyncio
import json as json_
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.base.encoding import decoded
from penstock.cli._frame import DEFAULT_URL, Failed, Json, run
from penstock.cli._streams import Output
from penstock.cli._text import shown
from penstock.cli.bus._servers import Servers, all_connected, no_such_queue

if TYPE_CHECKING:
    from penstock.bus import Consumption, Message, Queue
    from penstock.bus.mode import ModeOptions

LOOK_SECONDS: Final = 0.5
"""Seconds after which it looks whether the queue and the reader are still there."""
PATIENCE_SECONDS: Final = 60
"""Seconds that it waits for a server that goes away."""


def tail(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The queue, without `bus:queue:`.")],
    servers: Servers = None,
    start: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Begin at this place, 0 is the oldest message; default: new ones."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=0, help="End after this many messages.")] = None,
    json: Json = False,
) -> None:
    """Show the messages of a queue, and leave them there, until ctrl-C.

    One message a line: its id, a tab, and the message, with escapes for what a terminal cannot show; with --json in
    full. Messages that others take before they are read are not shown. The queue is not kept alive: when it is gone,
    the exit status is 1.
    """
    run(_tail(name, servers or [DEFAULT_URL], start, limit, json))


async def _tail(name: str, urls: Sequence[str], start: int | None, limit: int | None, as_json: bool) -> int:
    from penstock.bus import Bus
    from penstock.inspect.queues import read_queues

    last = 0
    async with all_connected(urls) as clients:
        states = [state for redis in clients.values() async for state in read_queues(redis, [name]) if state.exists]
        if not states:
            raise no_such_queue(name, len(clients))
        if wrong := [words for state in states for words in state.problems]:
            raise Failed(f"{shown(name)}: {wrong[0]}: nothing can be read from it")
        last = states[0].last_id
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Bus(*urls, patience=PATIENCE_SECONDS) as bus:
        queue = bus.queue(name)
        await queue.attach()
        bus.abandon(queue)
        options: ModeOptions = {"remove": False, "limit": limit}
        if start is None:
            options["after_id"] = last
        else:
            options["start"] = start
        messages = queue.consume(**options)
        return await _follow(queue, messages, stop, as_json)


async def _follow(queue: "Queue", messages: "Consumption", stop: asyncio.Event, as_json: bool) -> int:
    output = Output(sys.stdout.fileno(), stop)
    watch = asyncio.create_task(_watch(queue, output, stop))
    ending = asyncio.create_task(_stopped(messages, stop))
    try:
        while not stop.is_set() and await messages.fetch():
            lines = list[bytes]()
            while message := messages.next_taken():
                lines.append(_line(message, as_json))
            if await output.write(lines) < len(lines):
                break
    finally:
        stop.set()
        await ending
        watch_failed = await watch
    if output.error and not isinstance(output.error, BrokenPipeError):
        raise Failed(f"cannot write to standard output: {output.error.strerror}")
    if watch_failed:
        raise Failed(f"queue {shown(queue.name)} is gone: it was closed or has expired")
    return 0


async def _stopped(messages: "Consumption", stop: asyncio.Event) -> None:
    await stop.wait()
    await messages.stop()


async def _watch(queue: "Queue", output: Output, stop: asyncio.Event) -> bool:
    """Stop if the reader has gone away, or the queue: return True for that."""
    while not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await stop.wait()
            return False
        if output.reader_is_gone():
            stop.set()
        elif not queue.is_attached or not await queue.exists():
            stop.set()
            return True
    return False


def _line(message: "Message", as_json: bool) -> bytes:
    if as_json:
        return json_.dumps({"id": message.id, "message": decoded(message.body)}).encode() + b"\n"
    return f"{message.id}\t{shown(message.body)}\n".encode()
