"""Dead jobs: found in their stream, and sent again."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.base.encoding import decoded, encoded, parse_whole
from penstock.base.payload import as_json
from penstock.core.script import Script
from penstock.jobs.job import WEEK
from penstock.jobs.keys import INLINE, names_in
from penstock.jobs.servers import Servers

if TYPE_CHECKING:
    from penstock.core.instance import Instance

PAGE: Final = 10
"""Dead jobs that are read at once: each has up to 1 MiB of values."""
FOR: Final = "for"
"""The field of an entry that names the only group that it is for."""
_retry: Final = Script.read(Path(__file__).parent / "lua" / "retry.lua")


class DeadJob(NamedTuple):
    """A job whose attempts one group has used up."""

    id: str
    """Its entry in the stream of dead jobs."""
    server: int
    """The place of the server that has it."""
    stream: str
    job: str
    group: str
    entry: str
    """What it was in its stream."""
    attempts: int
    at: float
    """When it died (s since the epoch)."""
    errors: list[dict[str, Any]]
    """``attempt``, ``at`` and ``error`` of each attempt that has failed."""
    values: dict[str, bytes]
    """Its values, without those that were too large to keep."""
    fields: list[str]
    """The fields of its entry: names and values in turn."""


class Retried(NamedTuple):
    """A dead job that was sent again: its new entry, and the keys of values that are gone for good."""

    entry: str
    missing: list[str]


async def dead_jobs(
    servers: Servers, place: int, stream: str,
    *, group: str | None = None, job: str | None = None, after: str = "-", until: str = "+",
) -> AsyncIterator[DeadJob]:  # fmt: skip
    """Yield the dead jobs of ``stream`` on one server, the oldest first: behind the id ``after``, up to ``until``."""
    node, key = servers.nodes[place], encoded(servers.keys.dead(stream))
    begin = after if after == "-" else f"({after}"
    while found := await node.command("XRANGE", key, begin, until, "COUNT", PAGE):
        for id, fields in found:
            dead = _parsed(servers, place, stream, decoded(id), fields)
            if group in (None, dead.group) and job in (None, dead.job):
                yield dead
        begin = f"({decoded(found[-1][0])}"


def _parsed(servers: Servers, place: int, stream: str, id: str, fields: Sequence[bytes]) -> DeadJob:
    named = {decoded(name): value for name, value in zip(fields[::2], fields[1::2], strict=True)}
    known = {name: decoded(value) for name, value in named.items()}
    job, group, entry, producer = (known.get(name, "") for name in ("job", "grp", "entry", "prd"))
    group = group.removeprefix(servers.keys.group(""))
    values, errors = _json(known.get("values"), {}), _json(known.get("errors"), [])
    kept = _json(known.get("fields"), [])
    return DeadJob(
        id, place, stream, job, group, entry, parse_whole(known.get("attempts")) or 0, int(id.partition("-")[0]) / 1000,
        errors, {key: encoded(value) for key, value in values.items()},
        kept or ["prd", producer, "job", job, "keys", decoded(as_json([*values]))],
    )  # fmt: skip


def _json(text: str | None, otherwise: Any) -> Any:
    with suppress(ValueError):
        found = json.loads(text or "null")
        if isinstance(found, type(otherwise)):
            return found
    return otherwise


async def last_dead(servers: Servers, place: int, stream: str) -> str | None:
    """Return the id of the newest dead job of ``stream`` on one server; None if none is."""
    found = await servers.nodes[place].command("XREVRANGE", encoded(servers.keys.dead(stream)), "+", "-", "COUNT", 1)
    return decoded(found[0][0]) if found else None


def keys_in(fields: Sequence[str]) -> list[str]:
    """Return the keys of values that the fields of an entry name."""
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    return names_in(named.get("keys"))


async def retry(servers: Servers, dead: DeadJob, ttl: float = WEEK) -> Retried | None:
    """Send a dead job again for its group, with its values; return None if it is not dead any more.

    Values that are gone are set again; all live for ``ttl`` seconds at least. Raise ``Unconfirmed`` if the connection
    was lost before the reply: then it was sent again or not.
    """
    node, values = servers.nodes[dead.server], servers.node(dead.job)
    fields = zip(dead.fields[::2], dead.fields[1::2], strict=False)
    named = {name: word for name, word in fields if not name.startswith(INLINE)} | {FOR: dead.group}
    payload = {key: servers.keys.payload(dead.job, key) for key in {*keys_in(dead.fields), *dead.values}}
    restored = {payload[key]: value for key, value in dead.values.items()}
    if values is not node:
        await _restore(values, restored, int(ttl * 1000))
        restored = {}
    entry = await node.run_once(
        _retry,
        dead=servers.keys.dead(dead.stream),
        stream=servers.keys.stream(dead.stream),
        keys=[*restored],
        letter=dead.id,
        group=servers.keys.group(dead.group),
        ttl=int(ttl * 1000),
        fields=encoded(json.dumps([word for pair in named.items() for word in pair], ensure_ascii=False)),  # any bytes
        words=[*restored.values()],
    )
    if entry is None:
        return None
    gone = [key for key, name in payload.items() if not await values.command("EXISTS", encoded(name))]
    return Retried(decoded(entry), sorted(gone))


async def _restore(node: "Instance", values: dict[str, bytes], ttl: int) -> None:
    for name, value in values.items():
        key = encoded(name)
        if not await node.command("SET", key, value, "PX", ttl, "NX"):
            left = await node.command("PTTL", key)
            if 0 <= left < ttl:
                await node.command("PEXPIRE", key, ttl)
