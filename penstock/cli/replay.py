"""``penstock replay``: archived messages once more, into another namespace."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli._archive import (
    ArchiveDirectory,
    Master,
    Memory,
    Since,
    Until,
    moment,
    require_archive,
    sparks,
    steadily,
)
from penstock.cli._frame import DEFAULT, Failed, Json, Misused, RedisUrl, complain, connected, require_list, run
from penstock.cli._progress import progress
from penstock.cli._selection import require_tracked
from penstock.cli._text import print_json, print_table, shown
from penstock.encoding import encoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from redis.asyncio import Redis

    from penstock.keys import Keys
    from penstock.spark.outcomes import Comparison, Shadow
    from penstock.spark.replay import Archived
    from penstock.tracking.policy import Policy

HOW: Final = (
    "have them archived: `eventMessages: true` in its mdispatch and `payloads: true` in the pipeline, before they come"
)


@dataclass(frozen=True)
class Asked:
    """What is to be replayed, and how."""

    archive: str
    into: str
    origin: str | None
    since: datetime | None
    until: datetime | None
    speed: float | None
    """None for as fast as possible."""
    compare: bool


def replay(
    archive: ArchiveDirectory,
    into: Annotated[str, typer.Option("--into", metavar="NS", help="The namespace of the mdispatch that gets them.")],
    origin: Annotated[
        str | None, typer.Option("--from", metavar="NS", help="Whose messages; needed where the archive has several.")
    ] = None,
    since: Since = None,
    until: Until = None,
    speed: Annotated[float, typer.Option(metavar="N", help="N times as fast as it was.")] = 1,
    fast: Annotated[bool, typer.Option("--fast", help="As fast as possible.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Wait for their end, and say which fared otherwise; 1 if any did.")
    ] = False,
    redis: RedisUrl = DEFAULT,
    master: Master = "local[2]",
    memory: Memory = "1g",
    json: Json = False,
) -> None:
    """Push archived messages again.

    Into another, shadow namespace, in their order and with their timing. The archive must have their payloads.
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
    asked = Asked(archive, into, origin, moment(since, "since"), moment(until, "until"), speed, compare)
    return await replayed(asked, partial(sparks, master, memory), url, as_json)


async def replayed(
    asked: Asked, sparks: "Callable[[], AbstractContextManager[SparkSession]]", url: str, as_json: bool
) -> int:
    """The exit status."""
    from penstock.keys import Keys
    from penstock.spark.outcomes import Shadow

    keys = Keys(asked.into)
    async with connected(url) as redis:
        policy = await require_tracked(redis, keys)
        await _require_apart(redis, asked.origin, keys, policy)
        require_archive(asked.archive)
        async with _entered(sparks()) as spark:
            for reading in steadily():
                with reading:
                    rows = await asyncio.to_thread(_registered, spark, asked)
                    there = await asyncio.to_thread(_chosen, rows, asked)
            await _require_apart(redis, there.namespace, keys, policy)
            shadow = Shadow(redis, keys)
            await shadow.begin()
            told = await _push(redis, rows, there, asked, policy, shadow)
            told["unfinished"], comparison = 0, None
            if asked.compare:
                told["unfinished"] = await shadow.ended(told["messages"], policy)
                while await shadow.read():
                    pass
                for reading in steadily():
                    with reading:
                        comparison = await asyncio.to_thread(_compared, spark, asked, there.namespace, shadow)
    _tell(asked, there, policy, told, comparison, as_json)
    return int(comparison is not None and comparison.differ > 0)


@asynccontextmanager
async def _entered(sparks: "AbstractContextManager[SparkSession]") -> "AsyncIterator[SparkSession]":
    """In a thread of its own, so that an interruption reaches us and not Spark."""
    spark = await asyncio.to_thread(sparks.__enter__)
    try:
        yield spark
    except BaseException as error:
        await asyncio.to_thread(sparks.__exit__, type(error), error, error.__traceback__)
        raise
    await asyncio.to_thread(sparks.__exit__, None, None, None)


async def _require_apart(redis: "Redis", origin: str | None, into: "Keys", policy: "Policy") -> None:
    """Raise where a replay would reach the workers of ``origin``."""
    from penstock.keys import Keys
    from penstock.tracking.policy import Policy

    if origin is None:
        return
    if origin == into.namespace:
        raise Misused(f"{shown(origin)} is where they come from: name another namespace with --into, a shadow of it")
    theirs = await Policy.read(redis, Keys(origin))
    for role in ("source", "out", "done"):
        name = getattr(policy, role)
        if theirs and name in (theirs.source, theirs.out, theirs.done):
            problem = f"{shown(into.namespace)} shares its list {shown(name)} with {shown(origin)}"
            raise Failed(f"{problem}, whose workers would get the messages again: give it lists of its own")
    await require_list(redis, encoded(policy.source))


def _registered(spark: "SparkSession", asked: Asked) -> "DataFrame":
    from penstock.spark.archive import events

    namespaces = [asked.origin] if asked.origin is not None else []
    rows = events(spark, asked.archive, since=asked.since, until=asked.until, namespaces=namespaces)
    return rows.where("event = 'registered'")


def _chosen(rows: "DataFrame", asked: Asked) -> "Archived":
    """The one namespace that is to be replayed. Raises ``Failed`` or ``Misused`` where there is none, or no payload."""
    from penstock.spark.replay import archived

    found = archived(rows)
    if len(found) > 1:
        names = ", ".join(shown(each.namespace) for each in found)
        raise Misused(f"{asked.archive} has messages of {names}: name one of them with --from")
    if not found:
        whose = f" of {shown(asked.origin)}" if asked.origin else ""
        bounds = [("from", asked.since), ("before", asked.until)]
        when = "".join(f" {word} {bound:%Y-%m-%d %H:%M:%S} UTC" for word, bound in bounds if bound)
        raise Failed(
            f"{asked.archive}: no message{whose} was registered{when}: look at other times, or another archive"
        )
    if not found[0].kept:
        name = shown(found[0].namespace)
        raise Failed(f"{asked.archive} has none of the {found[0].registered:,} messages of {name} themselves: {HOW}")
    return found[0]


async def _push(
    redis: "Redis", rows: "DataFrame", there: "Archived", asked: Asked, policy: "Policy", shadow: "Shadow"
) -> dict[str, Any]:
    """What was done, in numbers."""
    from penstock.spark.replay import Pace, Pushed, messages, push

    pace, pushed, begun = Pace(asked.speed), Pushed(), time.monotonic()
    try:
        with progress(f"to {shown(policy.source)}", there.kept) as advance:
            async with _followed(shadow) if asked.compare else nullcontext():
                await push(redis, policy.source, messages(rows, there), pace, pushed, advance)
    except BaseException as error:
        why = "interrupted" if isinstance(error, asyncio.CancelledError) else "then it failed"
        complain(f"{pushed.messages:,} of {there.kept:,} messages were pushed to {shown(policy.source)}: {why}", 1)
        raise
    return {**asdict(pushed), "seconds": time.monotonic() - begun, "behind": pace.behind}


@asynccontextmanager
async def _followed(shadow: "Shadow") -> AsyncIterator[None]:
    """Have its events read meanwhile; what comes in the way of that is raised at the end."""
    over = asyncio.Event()
    following = asyncio.create_task(shadow.follow(over))
    try:
        yield
    finally:
        over.set()
        await asyncio.wait({following})
    following.result()


def _compared(spark: "SparkSession", asked: Asked, origin: str, shadow: "Shadow") -> "Comparison":
    from pyspark.sql import functions as F

    from penstock.spark.archive import events
    from penstock.spark.outcomes import compare, fates, replayed_as

    rows = events(spark, asked.archive, since=asked.since, namespaces=[origin])
    pushed = F.col("message").isNotNull()
    if asked.until:
        pushed &= F.col("at") < F.lit(asked.until)
    return compare(fates(rows, F.when(pushed, replayed_as())), fates(shadow.events(spark), F.col("xid")))


def _tell(
    asked: Asked,
    there: "Archived",
    policy: "Policy",
    told: dict[str, Any],
    comparison: "Comparison | None",
    as_json: bool,
) -> None:
    missing = there.registered - there.kept
    if as_json:
        names = {"archive": asked.archive, "from": there.namespace, "into": asked.into, "list": policy.source}
        print_json({**names, **told, "withoutPayload": missing, "compared": comparison and _plain(comparison)})
        return
    rate = round(told["messages"] / max(told["seconds"], 1e-6))
    where = f"of {shown(there.namespace)} to {shown(policy.source)}"
    typer.echo(f"pushed {told['messages']:,} messages {where} in {told['seconds']:.2f} s ({rate:,}/s)")
    if told["behind"] > 1:
        typer.echo(
            f"up to {told['behind']:.1f} s later than it was due: this machine, or the server, is slower than that"
        )
    if missing:
        typer.echo(f"{missing:,} more were registered of which the archive has no payload: {HOW}")
    if comparison:
        _table(asked, there, told["unfinished"], comparison)


def _table(asked: Asked, there: "Archived", unfinished: int, comparison: "Comparison") -> None:
    origin, into = shown(there.namespace), shown(asked.into)
    if unfinished:
        complain(f"{unfinished:,} messages of {into} have not ended in the time that it allows them", 1)
    rows = [[*pair, count] for pair, count in sorted(comparison.pairs.items(), key=lambda each: -each[1])]
    print_table("How they fared", (origin, into, "messages"), rows)
    if comparison.differ:
        ids = ", ".join(map(shown, comparison.ids))
        complain(f"{comparison.differ:,} fared otherwise than in {origin}, e.g. {ids}", 1)
    else:
        typer.echo(f"all of them fared as in {origin}")


def _plain(comparison: "Comparison") -> dict[str, Any]:
    table = [{"before": before, "now": now, "messages": count} for (before, now), count in comparison.pairs.items()]
    return {"table": table, "differ": comparison.differ, "ids": comparison.ids}
