"""``penstock pull``: take messages from a list and write them to standard output."""

import asyncio
import json
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

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
from penstock.encoding import decoded, encoded

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.transfer.pull import Pull

MAX_MESSAGES: Final = 1000
MAX_BYTES: Final = 1 << 20
"""Upper bounds of the messages and bytes that are taken and not yet written."""

WAIT_SECONDS: Final = 5
"""Seconds that one command of ``--follow`` waits for a message."""


def pull(
    name: Annotated[str, typer.Argument(metavar="LIST", help="The list to take from, the oldest message first.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more when the list is empty.")] = False,
    limit: Annotated[int | None, typer.Option(min=0, help="Take at most this many messages.")] = None,
    null: Annotated[bool, typer.Option("--null", help="End messages with a NUL byte, not a newline.")] = False,
    redis: RedisUrl = DEFAULT_URL,
    as_json: Json = False,
) -> None:
    """Take messages from a list and print them.

    One message a line, byte for byte, the oldest first. Messages are kept in LIST:pull:<id> until they are written;
    those that could not be written go back to where they were. The next pull of LIST also puts back what a killed one
    left; --limit 0 does only that. A reader such as "head" may consume more than it shows: use --limit.
    """
    run(_pull(encoded(name), follow, limit, b"\0" if null else b"\n", redis, as_json))


async def _pull(key: bytes, follow: bool, limit: int | None, end: bytes, url: str, as_json: bool) -> int:
    from penstock.transfer.pull import NAME, Pull, new_taker

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    taker = new_taker()
    async with connected(url, silence=2 * WAIT_SECONDS, name=NAME + taker) as client:
        await require_list(client, key)
        await require_one_slot(client, key)
        source = Pull(client, key, taker)
        await _adopt(source, key)
        flow = Flow(source, Output(sys.stdout.fileno(), stop), stop, end, as_json)
        async with connected(url) as second:
            watch = asyncio.create_task(flow.watch(second, await client.client_id()))
            try:
                await flow.run(follow, limit)
            finally:
                watch.cancel()
    if flow.found_nothing and sys.stderr.isatty():
        complain(f"{shown(key)} is empty or does not exist: nothing to take (--follow waits)", 0)
    if flow.back:
        complain(f"{flow.back:,} messages that were not written are back in {shown(key)}", 0)
    if flow.output.error and not isinstance(flow.output.error, BrokenPipeError):
        raise Failed(f"cannot write to standard output: {flow.output.error.strerror}")
    return 0


async def _adopt(source: "Pull", key: bytes) -> None:
    from redis.exceptions import NoPermissionError

    try:
        adopted = await source.adopt()
    except NoPermissionError:
        left = f"killed pulls may have left messages in {shown(key)}:pull:*"
        complain(f"{left}: only a user with the right to CLIENT LIST can put them back", 0)
    else:
        if adopted:
            complain(f"{adopted:,} messages that a killed pull had left are back in {shown(key)}", 0)


class Flow:
    """The loop from the list to the output: take, write and settle, until the list is empty or ``stop`` is set."""

    def __init__(self, source: "Pull", output: Output, stop: asyncio.Event, end: bytes, as_json: bool) -> None:
        self.output, self.back = output, 0
        self.found_nothing = False
        self._source, self._stop, self._end, self._as_json = source, stop, end, as_json

    async def run(self, follow: bool, limit: int | None) -> None:
        from redis.exceptions import RedisError

        written = taken = 0
        try:
            while not self._stop.is_set() and limit != 0:
                written = 0  # of what `take` is going to return; it settles what was written before
                messages = await self._source.take(
                    MAX_MESSAGES if limit is None else min(MAX_MESSAGES, limit), MAX_BYTES
                )
                if not messages and follow:
                    messages = await self._source.wait(WAIT_SECONDS)
                elif not messages:
                    self.found_nothing = not taken
                    break
                taken += len(messages)
                written = await self.output.write([self._line(message) for message in messages])
                if written < len(messages):
                    break
                limit = None if limit is None else limit - written
        except RedisError:  # it is unknown what the server did last: the next pull finds out
            complain(f"messages not written are in {shown(self._source.pending)}; the next pull puts them back", 0)
            raise
        self.back = await self._source.end(written)

    async def watch(self, redis: "Redis", client: int) -> None:
        """Stop if the reader goes away while nothing is written, and end a wait for a message on any stop."""
        from redis.exceptions import RedisError

        while not self._stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._stop.wait()
            if self.output.reader_is_gone():
                self._stop.set()
        with suppress(RedisError):  # then the wait ends by itself
            while True:
                await redis.client_unblock(client)
                await asyncio.sleep(0.05)

    def _line(self, message: bytes) -> bytes:
        return (json.dumps({"message": decoded(message)}).encode() if self._as_json else message) + self._end
