"""``penstock push``: push lines of a file or of standard input to a list."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.base.encoding import counted, decoded, encoded
from penstock.cli._frame import (
    DEFAULT_URL,
    Failed,
    Json,
    RedisUrl,
    complain,
    connected,
    require_list,
    require_path,
    run,
)
from penstock.cli._streams import read_some
from penstock.cli._text import print_json, shown

if TYPE_CHECKING:
    from redis.asyncio import Redis

READ_BYTES: Final = 256 * 1024
"""Upper bound of the bytes read, and so pushed, in one transaction; a larger message goes alone."""

MESSAGES_PER_PUSH: Final = 1000
"""Upper bound of the messages of one LPUSH."""

GRACE_SECONDS: Final = 1
"""Seconds that an interrupted push waits for the server's reply."""


@dataclass
class Pushed:
    """The counts that the server has confirmed so far."""

    messages: int = 0
    bytes: int = 0
    length: int = 0
    """Length of the list after the last transaction."""


def push(
    name: Annotated[
        str, typer.Argument(metavar="LIST", help="The list to push to; what is pushed first is taken first.")
    ],
    file: Annotated[Path | None, typer.Option(help="Read this file instead of standard input.")] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Push the whole input as one message, newlines included.")
    ] = False,
    null: Annotated[bool, typer.Option("--null", help="Messages end with a NUL byte, not a newline.")] = False,
    redis: RedisUrl = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Push lines to a list, as messages.

    Each line is one message, byte for byte, without its newline. If the push fails or is interrupted, it still says how
    many messages were pushed.
    """
    if whole and null:
        raise typer.BadParameter("--whole pushes the input as one message: leave out --null")
    run(_push(encoded(name), file, None if whole else b"\0" if null else b"\n", redis, json))


async def _push(key: bytes, file: Path | None, end: bytes | None, url: str, as_json: bool) -> int:
    with _opened(file) as fd:
        started = time.monotonic()
        async with connected(url) as client:
            await require_list(client, key)
            with _progress(fd, shown(key)) as advance:
                pushed = await _push_all(client, key, messages_of(fd, end), advance)
        _report(key, pushed, time.monotonic() - started, as_json)
    return 0


@contextmanager
def _opened(file: Path | None) -> Iterator[int]:
    if file is None:
        yield sys.stdin.fileno()
        return
    require_path(file)
    with file.open("rb", buffering=0) as stream:
        yield stream.fileno()


async def _push_all(
    client: "Redis", key: bytes, batches: AsyncIterator[list[bytes]], advance: Callable[[Pushed], None]
) -> Pushed:
    pushed = Pushed()
    try:
        async for messages in batches:
            sent = asyncio.create_task(_send(client, key, messages, pushed))
            try:
                await asyncio.shield(sent)
            except asyncio.CancelledError:
                await asyncio.wait({sent}, timeout=GRACE_SECONDS)
                raise
            advance(pushed)
    except BaseException as error:
        when = "this:" if isinstance(error, Exception) else "the interrupt"
        complain(f"{counted(pushed.messages, 'message')} went to {shown(key)} before {when}", 1)
        raise
    return pushed


async def messages_of(fd: int, end: bytes | None) -> AsyncIterator[list[bytes]]:
    """Yield batches of messages that end with ``end`` (the last need not); one message if ``end`` is None."""
    unfinished: list[bytes] = []
    empty = True
    while piece := await read_some(fd, READ_BYTES):
        empty = False
        if end is None or end not in piece:
            unfinished.append(piece)
            continue
        *messages, rest = b"".join([*unfinished, piece]).split(end)
        unfinished = [rest] if rest else []
        yield messages
    if unfinished or (empty and end is None):
        yield [b"".join(unfinished)]


async def _send(client: "Redis", key: bytes, messages: list[bytes], pushed: Pushed) -> None:
    """Push all messages or none, in one round trip."""
    from redis.exceptions import RedisError

    from penstock.core.once import too_large

    try:
        async with client.pipeline(transaction=True) as transaction:
            for start in range(0, len(messages), MESSAGES_PER_PUSH):
                transaction.lpush(key, *messages[start : start + MESSAGES_PER_PUSH])
            pushed.length = (await transaction.execute())[-1]
    except RedisError as error:
        if words := await too_large(client, max(map(len, messages))):
            raise Failed(words) from error
        raise
    pushed.messages += len(messages)
    pushed.bytes += sum(map(len, messages))


def _report(key: bytes, pushed: Pushed, seconds: float, as_json: bool) -> None:
    rate = round(pushed.messages / max(seconds, 1e-6))
    if as_json:
        numbers = {"messages": pushed.messages, "bytes": pushed.bytes, "length": pushed.length}
        print_json({"list": decoded(key), **numbers, "seconds": seconds, "rate": rate})
    else:
        typer.echo(f"pushed {counted(pushed.messages, 'message')} to {shown(key)} in {seconds:.2f} s ({rate:,}/s)")


@contextmanager
def _progress(fd: int, name: str) -> Iterator[Callable[[Pushed], None]]:
    """Yield a function that shows progress; there is a bar only on a terminal that is not the input."""
    if os.isatty(fd) or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[messages]:,}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        size = os.fstat(fd).st_size
        task = bar.add_task(escape(name), total=size or None, messages=0)
        yield lambda pushed: bar.update(
            task, completed=min(size, pushed.bytes + pushed.messages) or pushed.bytes, messages=pushed.messages
        )
