"""``penstock pull``: take messages from a list and write them to standard output."""

import asyncio
import json
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.base.encoding import counted, decoded, encoded
from penstock.base.errors import PenstockError
from penstock.cli._frame import (
    DEFAULT_URL,
    Failed,
    Json,
    RedisUrl,
    complain,
    connected,
    require_list,
    require_one_slot,
    run,
)
from penstock.cli._streams import Output
from penstock.cli._text import shown

if TYPE_CHECKING:
    from penstock.lists import Lists
    from penstock.lists.holding import Holding

MAX_MESSAGES: Final = 1000
MAX_BYTES: Final = 1 << 20
"""Upper bounds of the messages and bytes that are taken and not yet written."""

LEASE_SECONDS: Final = 3.0
"""Seconds after which messages of a pull that was killed, or is suspended, are taken by others."""
PATIENCE_SECONDS: Final = 1.0
"""Seconds for which a server may be away."""
WATCH_SECONDS: Final = 0.5
"""Seconds between two looks whether the reader of the output has gone away."""


def pull(
    name: Annotated[str, typer.Argument(metavar="LIST", help="The list to take from, the oldest message first.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more when the list is empty.")] = False,
    limit: Annotated[int | None, typer.Option(min=0, help="Take at most this many messages.")] = None,
    null: Annotated[bool, typer.Option("--null", help="End messages with a NUL byte, not a newline.")] = False,
    redis: RedisUrl = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Take messages from a list and print them.

    One message a line, byte for byte, the oldest first. Messages are kept in LIST:consumer:<id> until they are written;
    those that could not be written go back to where they were. The next pull of LIST also puts back what a killed one
    left; --limit 0 does only that. A reader such as "head" may consume more than it shows: use --limit.
    """
    run(_pull(encoded(name), follow, limit, b"\0" if null else b"\n", redis, as_json))


async def _pull(key: bytes, follow: bool, limit: int | None, end: bytes, url: str, as_json: bool) -> int:
    from penstock.lists import Lists

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connected(url) as client:
        await require_list(client, key)
        await require_one_slot(client, key)
        async with Lists(url, patience=PATIENCE_SECONDS, lease=LEASE_SECONDS) as lists:
            flow = Flow(lists, key, Output(sys.stdout.fileno(), stop), stop, end, as_json)
            watch = asyncio.create_task(flow.watch())
            try:
                await flow.run(follow, limit)
            finally:
                watch.cancel()
                with suppress(asyncio.CancelledError):
                    await watch
    if flow.found_nothing and sys.stderr.isatty():
        complain(f"{shown(key)} is empty or does not exist: nothing to take (--follow waits)", 0)
    if flow.back:
        complain(f"back in {shown(key)}, as not written: {counted(flow.back, 'message')}", 0)
    if flow.output.error and not isinstance(flow.output.error, BrokenPipeError):
        raise Failed(f"cannot write to standard output: {flow.output.error.strerror}")
    return 0


class Flow:
    """The loop from the list to the output: take, write and settle, until the list is empty or ``stop`` is set."""

    def __init__(
        self, lists: "Lists", key: bytes, output: Output, stop: asyncio.Event, end: bytes, as_json: bool
    ) -> None:
        self.output, self.back = output, 0
        self.found_nothing = False
        self._lists, self._key = lists, key
        self._stop, self._end, self._as_json = stop, end, as_json

    async def run(self, follow: bool, limit: int | None) -> None:
        from redis.exceptions import RedisError

        from penstock.core.consumer import Consumer

        source = self._lists[self._key].source(MAX_MESSAGES, MAX_BYTES)
        consumer, holding = Consumer(self._lists.consumers, source, MAX_MESSAGES), source.holding
        try:
            await consumer.enter()
            if recovered := await holding.recover():
                complain(f"back in {shown(self._key)}, left by a killed pull: {counted(recovered, 'message')}", 0)
            await self._run(holding, follow, limit)
            await consumer.leave()
        except (RedisError, OSError, PenstockError):  # it is unknown what the server did last
            self._lists.consumers.left(consumer)
            await holding.close()
            complain(f"messages of {shown(self._key)} that are not written stay there; the next pull puts them back", 0)
            raise

    async def _run(self, holding: "Holding", follow: bool, limit: int | None) -> None:
        taken = 0
        while not self._stop.is_set() and limit != 0:
            most = MAX_MESSAGES if limit is None else min(MAX_MESSAGES, limit)
            messages = await holding.take(most)  # settles what was written before
            if messages is None:  # this process was suspended: others have what it had taken
                continue
            if not messages and follow:
                messages = await holding.wait(most)
            elif not messages:
                self.found_nothing = not taken
                return
            written = await self.output.write([self._line(message) for message in messages])
            for place in range(written):
                holding.settlement.note_end((), holding.failures[place] if holding.failures else 0)
            taken += written
            limit = None if limit is None else limit - written
            self.back = len(messages) - written
            if self.back:
                return

    async def watch(self) -> None:
        """Stop if the reader goes away while nothing is written, and end a wait for a message on any stop."""
        while not self._stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._stop.wait()
            if self.output.reader_is_gone():
                self._stop.set()
        self._lists.stop()

    def _line(self, message: bytes) -> bytes:
        return (json.dumps({"message": decoded(message)}).encode() if self._as_json else message) + self._end
