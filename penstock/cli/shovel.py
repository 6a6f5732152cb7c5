"""``penstock shovel``: move or copy a list to another server, once."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.base.encoding import counted, encoded
from penstock.base.errors import Fenced, PenstockError
from penstock.cli._frame import Failed, Json, Misused, complain, connected, require_list, require_one_slot, run
from penstock.cli._text import print_json, shown
from penstock.cli._url import URL_FORMS, resolve_url

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from penstock.transfer.shovel import Moved, Shovel

REPLY_TIMEOUT: Final = 30
"""Seconds without a reply after which a link counts as broken."""

GRACE_SECONDS: Final = 3
"""Seconds that an interrupted shovel waits for messages in flight."""

END_SECONDS: Final = 10
"""Seconds to put back messages that have not arrived."""

NAME_ANOTHER: Final = "or name another"
"""Advice if one of the two servers does not answer."""


def shovel(
    source_url: Annotated[
        str, typer.Argument(metavar="SRC_URL", callback=resolve_url, help=f"The server to take from. {URL_FORMS}")
    ],
    source: Annotated[str, typer.Argument(metavar="LIST", help="The list to take from, the oldest message first.")],
    target_url: Annotated[
        str, typer.Argument(metavar="DST_URL", callback=resolve_url, help="The server to push to; it may be the same.")
    ],
    target: Annotated[str, typer.Argument(metavar="LIST", help="The list to push to.")],
    copy: Annotated[bool, typer.Option("--copy", help="Copy the messages and leave them in their list.")] = False,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="Move at most N messages.")] = None,
    until_empty: Annotated[
        bool,
        typer.Option("--until-empty", help="Go on until the list is empty, also with messages that arrive meanwhile."),
    ] = False,
    json: Json = False,
) -> None:
    """Move a list to another server.

    Others can see a password in a URL (ps, shell history): put the URL into a file, or into a variable.

        penstock shovel @/run/secrets/old orders env:NEW_REDIS orders

    Every message arrives once and in order, even if the link breaks; a broken link is retried for half a minute.
    Without --until-empty it ends with the messages that are in the list at the start; an empty list is an error,
    status 1.

    Ctrl-C waits a few seconds for messages in flight and puts back those that have not arrived; the exit status is 130.
    If a server does not answer, that takes 13 seconds at most: the rest stays in LIST:shovel:<hash>, and the exit
    status is 1. A killed shovel leaves the rest there, too. Run the same command again to continue. If two shovels run
    for the same lists, the later one takes over.

    --copy cannot resume: run again after a failure, it copies the same messages a second time. If killed, it leaves
    LIST:from:<id> on the target: delete that.
    """
    run(_shovel(Arguments(source_url, source, target_url, target, copy, limit, until_empty), json))


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call."""

    source_url: str
    source: str
    target_url: str
    target: str
    copy: bool
    limit: int | None
    until_empty: bool

    @property
    def verb(self) -> str:
        return "copied" if self.copy else "moved"

    def max_messages(self, waiting: int) -> int | None:
        bounds = [self.limit, None if self.until_empty else waiting]
        return min((bound for bound in bounds if bound is not None), default=None)


async def _shovel(request: Arguments, as_json: bool) -> int:
    from penstock.transfer.shovel import LocalError

    request.target.encode()  # raises where it is not UTF-8, as the name of a ledger must be
    async with connected(request.source_url, silence=REPLY_TIMEOUT, advice=NAME_ANOTHER) as here:
        await require_list(here, encoded(request.source), request.source_url)
        if not request.copy:
            await require_one_slot(here, encoded(request.source))
        server = await _server(here, request.source_url)
        try:
            async with connected(request.target_url, silence=REPLY_TIMEOUT, advice=NAME_ANOTHER) as there:
                await require_list(there, encoded(request.target), request.target_url)
                await require_one_slot(there, encoded(request.target))
                if request.source == request.target and server == await _server(there, request.target_url):
                    raise Misused(f"{shown(request.target)} is the same list on the same server: name another")
                return await _carry(request, _job(request, here, there), as_json)
        except LocalError as error:
            trouble = error.error
        raise trouble  # outside of the other server's block, and of the handler: its chain of causes must not be a ring


async def _server(redis: "Redis", url: str) -> str:
    """Return a name of the server's database that does not depend on the URL, if this user may run INFO."""
    from redis.exceptions import NoPermissionError

    from penstock.base.urls import server_of

    try:
        run_id = (await redis.info("server"))["run_id"]
    except NoPermissionError:
        return server_of(url)
    return f"{run_id} {redis.connection_pool.connection_kwargs.get('db') or 0}"


def _job(request: Arguments, here: "Redis", there: "Redis") -> "Shovel":
    from penstock.transfer.copy import Copy
    from penstock.transfer.move import Move

    source = encoded(request.source)
    if request.copy:
        return Copy(here, source, there, request.target)
    return Move(here, source, there, request.target, request.target_url)


async def _carry(request: Arguments, job: "Shovel", as_json: bool) -> int:
    waiting = await job.waiting()
    if not waiting and not await job.unfinished():
        raise Failed(
            f"{shown(request.source)} is empty or does not exist: nothing to {'copy' if request.copy else 'move'}"
        )
    max_messages, started = request.max_messages(waiting), time.monotonic()
    title = f"{shown(request.source)} to {shown(request.target)}"
    try:
        with _progress(title, waiting if max_messages is None else max_messages) as (arrived, report_trouble):

            def broken(why: str) -> None:
                report_trouble(f"the link is broken, retrying: {why}")

            interrupted = await _until_signal(job, job.run(max_messages, arrived, broken), report_trouble)
    except Fenced:
        raise Failed(f"another shovel from {title} has taken over") from None
    except BaseException:
        complain(f"{request.verb} to {shown(request.target)} before this: {counted(job.moved.messages, 'message')}", 1)
        raise
    _report(request, job.moved, time.monotonic() - started, interrupted, as_json)
    for words in job.remarks:
        complain(words, 0)
    missing = 0 if interrupted or not request.copy or max_messages is None else max_messages - job.moved.messages
    if missing:
        complain(f"{missing:,} of the messages were taken from {shown(request.source)} before they could be copied", 1)
    return 130 if interrupted else int(missing > 0)


async def _until_signal(job: "Shovel", run: Coroutine[Any, Any, None], report_trouble: Callable[[str], object]) -> bool:
    """Run the job, put back the rest after ctrl-C or SIGTERM, and return True if there was such a signal."""
    signalled = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    running, waiting = asyncio.create_task(run), asyncio.create_task(signalled.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            job.stopped = True
            await asyncio.wait((running,), timeout=GRACE_SECONDS)
        waiting.cancel()
        while not running.done():
            running.cancel()
            await asyncio.wait((running,), timeout=1)
        with suppress(asyncio.CancelledError):
            await running
    finally:
        await _end(job, report_trouble)
    return signalled.is_set()


async def _end(job: "Shovel", report_trouble: Callable[[str], object]) -> None:
    from redis.exceptions import RedisError

    from penstock.transfer.shovel import LocalError

    try:
        async with asyncio.timeout(END_SECONDS):
            await job.end()
    except Fenced:
        raise
    except TimeoutError:
        raise Failed(f"{job.late} within {END_SECONDS} s: {job.remains}") from None
    except (RedisError, LocalError, PenstockError):
        report_trouble(job.remains)
        raise


def _report(request: Arguments, moved: "Moved", seconds: float, interrupted: bool, as_json: bool) -> None:
    rate = round(moved.messages / max(seconds, 1e-6))
    if as_json:
        numbers = {"messages": moved.messages, "bytes": moved.bytes, "seconds": seconds, "rate": rate}
        print_json(
            {"from": request.source, "to": request.target, "copy": request.copy, "interrupted": interrupted, **numbers}
        )
        return
    lists = f"from {shown(request.source)} to {shown(request.target)}"
    amount = f"{counted(moved.messages, 'message')} ({counted(moved.bytes, 'byte')})"
    typer.echo(f"{request.verb} {amount} {lists} in {seconds:.2f} s ({rate:,}/s)")


@contextmanager
def _progress(title: str, total: int) -> Iterator[tuple[Callable[[int], object], Callable[[str], object]]]:
    """Yield a function for the number of arrived messages and one for notes; show a bar only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None, lambda words: complain(words, 0)
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.text import Text

    rate, left = TextColumn("{task.fields[rate]:,.0f}/s"), TextColumn("{task.remaining:,.0f} left,")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), rate, left, TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape(title), total=total, rate=0.0)
        started = time.monotonic()

        def arrived(count: int) -> None:
            rate = count / max(time.monotonic() - started, 1e-6)
            bar.update(task, completed=count, total=max(total, count), rate=rate)

        yield arrived, lambda words: bar.console.print(Text(f"penstock: {shown(words)}"), soft_wrap=True)
