"""Find jobs by their id, in a stream or among those that wait for their time, and cancel them."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.base.encoding import decoded, encoded
from penstock.base.keys import glob_escaped
from penstock.base.payload import as_json
from penstock.core.script import Script
from penstock.jobs.errors import Cancelled, as_error
from penstock.jobs.forwarding import CANCELLED, forward_completions
from penstock.jobs.keys import CAPACITY
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance

PAGE: Final = 1_000
_cancel: Final = Script.read(Path(__file__).parent / "lua" / "cancel.lua")


class Delayed(NamedTuple):
    """A job that waits for its time."""

    member: bytes
    """What it is in its sorted set."""
    due: float
    """When it begins (s since the epoch)."""
    fields: list[str]

    @property
    def job(self) -> str:
        """Return its id."""
        return named(self.fields).get("job", "")


def named(fields: Sequence[str]) -> dict[str, str]:
    """Return the fields of an entry by name."""
    return dict(zip(fields[::2], fields[1::2], strict=False))


async def pages(
    node: "Instance", key: str, after: str = "-", page: int = PAGE
) -> AsyncIterator[list[tuple[str, list[str]]]]:
    """Yield entries with their fields, some at once, from the one behind ``after``, or from the first one."""
    async for found in _pages(node, key, after, page):
        yield [(decoded(entry), [*map(decoded, fields)]) for entry, fields in found]


async def _pages(
    node: "Instance", key: str, after: str = "-", page: int = PAGE
) -> AsyncIterator[list[tuple[bytes, list[bytes]]]]:
    begin = after if after == "-" else f"({after}"
    while found := await node.command("XRANGE", encoded(key), begin, "+", "COUNT", page):
        yield found
        begin = f"({decoded(found[-1][0])}"
        if len(found) < page:
            return


async def entries_of(
    servers: Servers, node: "Instance", stream: str, job: str, advance: Callable[[int], None] = lambda _: None
) -> list[str]:
    """Return the entries of a job: all of the stream are read, page by page. ``advance`` is told how many."""
    found, wanted = list[str](), encoded(job)
    async for page in _pages(node, servers.keys.stream(stream)):
        found += [
            decoded(entry)
            for entry, fields in page
            if wanted in fields and (b"job", wanted) in zip(fields[::2], fields[1::2], strict=False)
        ]
        advance(len(page))
    return found


async def delayed_of(servers: Servers, node: "Instance", stream: str, job: str) -> list[Delayed]:
    """Return the same job as often as it waits for its time."""
    found, cursor = dict[bytes, float](), b"0"
    match = f'*"job","{glob_escaped(job)}"*'
    while True:
        words = (cursor, "MATCH", match, "COUNT", PAGE)
        cursor, members = await node.command("ZSCAN", encoded(servers.keys.later(stream)), *words)
        found |= dict(zip(members[::2], map(float, members[1::2]), strict=True))
        if cursor == b"0":
            every = [delayed(member, due) for member, due in found.items()]
            return [each for each in every if each.job == job]


def delayed(member: bytes, due: float) -> Delayed:
    """Return what a member of the sorted set is."""
    return Delayed(member, due, json.loads(decoded(member).partition(" ")[2]))


async def cancel(
    servers: Servers, node: "Instance", stream: str, entry: str = "", member: bytes = b""
) -> list[str] | None:
    """Cancel the job with an entry, or one that waits for its time, for all groups that have not done it.

    Return these groups; None if it is not there.
    """
    done: dict[str, Any] = {"done": servers.keys.done(stream)} if servers.node(stream) is node else {}
    found = await node.run(
        _cancel,
        stream=servers.keys.stream(stream),
        later=servers.keys.later(stream),
        **done,
        forward=servers.keys.of_group(stream, CANCELLED)["forward"],
        entry=entry,
        member=member,
        name=stream,
        prefix=servers.keys.group(""),
        channel=servers.keys.channel(stream, ""),
        control=servers.keys.control(stream),
        capacity=CAPACITY,
        err=as_json(as_error(Cancelled("the job was cancelled"))),
    )
    if not done:
        await forward_completions(servers, node, stream, CANCELLED)
    return None if found is None else [*map(decoded, found)]


async def cancel_job(
    servers: Servers, node: "Instance", stream: str, job: str, advance: Callable[[int], None] = lambda _: None
) -> list[str] | None:
    """Cancel a job as often as it is there, by its id; return as ``cancel`` does."""
    waiting = await delayed_of(servers, node, stream, job)  # first: it may be in the stream afterwards
    found = [await cancel(servers, node, stream, member=each.member) for each in waiting]
    entries = await entries_of(servers, node, stream, job, advance)
    found += [await cancel(servers, node, stream, entry) for entry in entries]
    known = [each for each in found if each is not None]
    return [*dict.fromkeys(group for groups in known for group in groups)] if known else None
