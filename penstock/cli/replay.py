"""``penstock replay``: push archived messages into another namespace."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.base.encoding import counted, encoded
from penstock.cli._archive import (
    ArchiveDirectory,
    Master,
    Memory,
    Since,
    Until,
    parse_time,
    require_archive,
    retry_reads,
    spark_session,
)
from penstock.cli._frame import DEFAULT_URL, Failed, Json, Misused, RedisUrl, complain, connected, require_list, run
from penstock.cli._progress import progress
from penstock.cli._selection import require_tracked
from penstock.cli._text import print_json, print_table, shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from redis.asyncio import Redis

    from penstock.base.keys import Keys
    from penstock.spark.outcomes import Comparison, EventRecorder
    from penstock.spark.replay import Archived, Replayed
    from penstock.tracking.policy import Policy

ARCHIVE_PAYLOADS: Final = (
    "have them archived: `eventMessages: true` in its mdispatch and `payloads: true` in the pipeline, before they come"
    "; with `mask`, it archives only those that are JSON"
)


@dataclass(frozen=True)
class ReplayRequest:
    """The messages to replay, and how."""

    archive: str
    into: str
    origin: str | None
    since: datetime | None
    until: datetime | None
    speed: float | None
    """Multiple of the original speed; None for as fast as possible."""
    compare: bool


def replay(
    archive: ArchiveDirectory,
    into: Annotated[str, typer.Option("--into", metavar="NS", help="The namespace of the mdispatch to push to.")],
    origin: Annotated[
        str | None,
        typer.Option("--from", metavar="NS", help="Replay messages of NS; required if the archive has several."),
    ] = None,
    since: Since = None,
    until: Until = None,
    speed: Annotated[float, typer.Option(metavar="N", help="Replay N times as fast as the original.")] = 1,
    fast: Annotated[bool, typer.Option("--fast", help="Replay as fast as possible.")] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Wait until they end and compare their outcomes; exit status 1 if any differs."),
    ] = False,
    redis: RedisUrl = DEFAULT_URL,
    master: Master = "local[2]",
    memory: Memory = "1g",
    json: Json = False,
) -> None:
    """Push archived messages into a shadow namespace.

    They are pushed in their original order and with their original timing. The archive must have their payloads.
    """
    if not speed > 0 or speed == float("inf"):
        raise typer.BadParameter("--speed takes a number above 0: 1 is the original timing, 10 ten times as fast")
    if fast and speed != 1:
        raise typer.BadParameter("--fast is as fast as possible: leave out --speed")
    run(_replay(archive, into, origin, since, until, None if fast else speed, compare, redis, master, memory, json))


async def _replay(
    archive: str,
    into: str,
    origin: str | None,
    since: str | None,
    until: str | None,
    speed: float | None,
    compare: bool,
    url: str,
    master: str,
    memory: str,
    as_json: bool,
) -> int:
    request = ReplayRequest(
        archive, into, origin, parse_time(since, "since"), parse_time(until, "until"), speed, compare
    )
    return await run_replay(request, partial(spark_session, master, memory, payloads=True), url, as_json)


async def run_replay(
    request: ReplayRequest, spark_session: "Callable[[], AbstractContextManager[SparkSession]]", url: str, as_json: bool
) -> int:
    """Replay, print the result and return the exit status."""
    from penstock.base.keys import Keys
    from penstock.spark.outcomes import EventRecorder

    keys = Keys(request.into)
    async with connected(url) as redis:
        policy = await require_tracked(redis, keys)
        await _require_apart(redis, request.origin, keys, policy)
        require_archive(request.archive)
        async with _in_thread(spark_session()) as spark:
            for reading in retry_reads():
                with reading:
                    rows = await asyncio.to_thread(_registered_events, spark, request)
                    there = await asyncio.to_thread(_choose_namespace, rows, request)
                    await _require_apart(redis, there.namespace, keys, policy)
                    lists = await asyncio.to_thread(_begun, rows, there)
            recorder = EventRecorder(redis, keys)
            await recorder.begin()
            numbers = await _push(redis, lists, there, request, policy, recorder)
            numbers["unfinished"], comparison = 0, None
            if request.compare:
                numbers["unfinished"] = await recorder.wait_until_ended(numbers["messages"], policy)
                while await recorder.read_page():
                    pass
                for reading in retry_reads():
                    with reading:
                        comparison = await asyncio.to_thread(_compared, spark, request, there.namespace, recorder)
    _print(request, there, policy, numbers, comparison, as_json)
    return int(comparison is not None and comparison.differ > 0)


@asynccontextmanager
async def _in_thread(spark_session: "AbstractContextManager[SparkSession]") -> "AsyncIterator[SparkSession]":
    """Enter the session in a thread, so that ctrl-C reaches us and not Spark."""
    spark = await asyncio.to_thread(spark_session.__enter__)
    try:
        yield spark
    except BaseException as error:
        await asyncio.to_thread(spark_session.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(spark_session.__exit__, None, None, None)


async def _require_apart(redis: "Redis", origin: str | None, into: "Keys", policy: "Policy") -> None:
    """Raise ``Misused`` or ``Failed`` if a replay would reach the workers of ``origin``."""
    from penstock.base.keys import Keys
    from penstock.tracking.policy import Policy

    if origin is None:
        return
    if origin == into.namespace:
        raise Misused(f"{shown(origin)} is where the messages are from: name a shadow of it with --into")
    theirs = await Policy.read(redis, Keys(origin))
    for role in ("source", "out", "done"):
        name = getattr(policy, role)
        if theirs and name in (theirs.source, theirs.out, theirs.done):
            problem = f"{shown(into.namespace)} shares its list {shown(name)} with {shown(origin)}"
            raise Failed(f"{problem}, whose workers would get the messages again: give it lists of its own")
    await require_list(redis, encoded(policy.source))


def _registered_events(spark: "SparkSession", request: ReplayRequest) -> "DataFrame":
    from penstock.spark.archive import events

    namespaces = [request.origin] if request.origin is not None else []
    rows = events(spark, request.archive, since=request.since, until=request.until, namespaces=namespaces)
    return rows.where("event = 'registered'")


def _choose_namespace(rows: "DataFrame", request: ReplayRequest) -> "Archived":
    """Return the namespace to replay. Raise ``Misused`` if there are several, ``Failed`` without any payload."""
    from penstock.spark.replay import archived

    found = archived(rows)
    if len(found) > 1:
        names = ", ".join(shown(each.namespace) for each in found)
        raise Misused(f"{request.archive} has messages of {names}: name one of them with --from")
    if not found:
        whose = f" of {shown(request.origin)}" if request.origin else ""
        bounds = [("from", request.since), ("before", request.until)]
        when = "".join(f" {word} {bound:%Y-%m-%d %H:%M:%S} UTC" for word, bound in bounds if bound)
        raise Failed(
            f"{request.archive}: no message{whose} was registered{when}: look at other times, or another archive"
        )
    if not found[0].kept:
        name = shown(found[0].namespace)
        why = f"has none of the {found[0].registered:,} messages of {name} themselves: {ARCHIVE_PAYLOADS}"
        raise Failed(f"{request.archive} {why}")
    return found[0]


def _begun(rows: "DataFrame", there: "Archived") -> "Iterator[list[Replayed]]":
    """Return the messages once the first of them are read: by then Spark has read all files."""
    from penstock.spark.replay import messages

    lists = messages(rows, there)
    return chain([next(lists)], lists)


async def _push(
    redis: "Redis",
    lists: "Iterator[list[Replayed]]",
    there: "Archived",
    request: ReplayRequest,
    policy: "Policy",
    recorder: "EventRecorder",
) -> dict[str, Any]:
    """Push the messages and return the counts."""
    from penstock.spark.replay import Pace, Pushed, push

    pace, pushed, begun = Pace(request.speed), Pushed(), time.monotonic()
    try:
        with progress(f"to {shown(policy.source)}", there.kept) as advance:
            async with _following(recorder) if request.compare else nullcontext():
                await push(redis, policy.source, lists, pace, pushed, advance)
    except BaseException as error:
        why = "interrupted" if isinstance(error, asyncio.CancelledError) else "then it failed"
        complain(f"{pushed.messages:,} of {there.kept:,} messages were pushed to {shown(policy.source)}: {why}", 1)
        raise
    return {**asdict(pushed), "seconds": time.monotonic() - begun, "behind": pace.behind}


@asynccontextmanager
async def _following(recorder: "EventRecorder") -> AsyncIterator[None]:
    """Read the events of ``shadow`` during the block; raise an error of that at its end."""
    over = asyncio.Event()
    following = asyncio.create_task(recorder.follow(over))
    try:
        yield
    finally:
        over.set()
        await asyncio.wait({following})
    following.result()


def _compared(spark: "SparkSession", request: ReplayRequest, origin: str, recorder: "EventRecorder") -> "Comparison":
    from pyspark.sql import functions as F

    from penstock.spark.archive import events
    from penstock.spark.outcomes import compare, outcomes_by_key, replayed_as

    rows = events(spark, request.archive, since=request.since, namespaces=[origin])
    pushed = F.col("message").isNotNull()
    if request.until:
        pushed &= F.col("at") < F.lit(request.until)
    before = outcomes_by_key(rows, F.when(pushed, replayed_as()))
    return compare(before, outcomes_by_key(recorder.events(spark), F.col("xid")))


def _print(
    request: ReplayRequest,
    there: "Archived",
    policy: "Policy",
    numbers: dict[str, Any],
    comparison: "Comparison | None",
    as_json: bool,
) -> None:
    missing = there.registered - there.kept
    if as_json:
        names = {"archive": request.archive, "from": there.namespace, "into": request.into, "list": policy.source}
        print_json({**names, **numbers, "withoutPayload": missing, "compared": comparison and _as_json(comparison)})
        return
    rate = round(numbers["messages"] / max(numbers["seconds"], 1e-6))
    where = f"of {shown(there.namespace)} to {shown(policy.source)}"
    typer.echo(f"pushed {counted(numbers['messages'], 'message')} {where} in {numbers['seconds']:.2f} s ({rate:,}/s)")
    if numbers["behind"] > 1:
        typer.echo(
            f"up to {numbers['behind']:.1f} s behind schedule: this machine or the server is too slow for this speed"
        )
    if missing:
        typer.echo(f"{missing:,} more were registered, but the archive does not have their payload: {ARCHIVE_PAYLOADS}")
    if comparison:
        _table(request, there, numbers["unfinished"], comparison)


def _table(request: ReplayRequest, there: "Archived", unfinished: int, comparison: "Comparison") -> None:
    origin, into = shown(there.namespace), shown(request.into)
    if unfinished:
        complain(f"{counted(unfinished, 'message')} of {into} did not end within the time that its settings allow", 1)
    rows = [[*pair, count] for pair, count in sorted(comparison.pairs.items(), key=lambda each: -each[1])]
    print_table("Outcomes", (origin, into, "messages"), rows)
    if comparison.differ:
        ids = ", ".join(map(shown, comparison.ids))
        complain(f"{comparison.differ:,} ended otherwise than in {origin}, e.g. {ids}", 1)
    else:
        typer.echo(f"all of them ended as in {origin}")


def _as_json(comparison: "Comparison") -> dict[str, Any]:
    table = [{"before": before, "now": now, "messages": count} for (before, now), count in comparison.pairs.items()]
    return {"table": table, "differ": comparison.differ, "ids": comparison.ids}
