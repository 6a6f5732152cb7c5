"""``penstock map``: draw a composition, from its files or as it runs."""

import asyncio
import signal
import sys
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli._frame import (
    DEFAULT_URL,
    NAME_ANOTHER,
    Json,
    Misused,
    complain,
    environment,
    masked,
    require_path,
    run,
)
from penstock.cli._text import clock, print_json
from penstock.cli._url import redis_option

if TYPE_CHECKING:
    from rich.tree import Tree

    from penstock.cli._observer import Observer
    from penstock.composition.draw.sketch import Sketch
    from penstock.composition.live.samples import Samples

INTERVAL: Final = 1.0
"""Seconds between two samples."""


def draw(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="The composition; default with --live: the registered services."),
    ] = None,
    live: Annotated[
        bool, typer.Option("--live", help="Sample the lists and services every second, until ctrl-C.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="With --live: draw once, from two samples a second apart.")
    ] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an SVG image; needs penstock[map].")] = None,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    redis: Annotated[str | None, redis_option(f"With --live, the server: {DEFAULT_URL} by default.")] = None,
    json: Json = False,
) -> None:
    """Draw the services of a composition, their lists and servers.

    With --live it also shows the length of each list, the messages in and out a second, and the age of the oldest one,
    if services count them. A list that keeps growing is marked.
    """
    run(_draw(directory, live, once, svg, mermaid, redis, json))


async def _draw(
    directory: Path | None, live: bool, once: bool, picture: Path | None, mermaid: bool, url: str | None, as_json: bool
) -> int:
    from penstock.composition.draw.sketch import Sketch
    from penstock.composition.files import read_sound

    if (picture is not None) + mermaid + as_json > 1:
        raise Misused("expected one of --svg, --mermaid and --json")
    if once and not live:
        raise Misused("--once requires --live")
    if not once and live and (picture or mermaid):
        raise Misused("--svg and --mermaid draw once: pass --once with --live")
    if directory:
        require_path(directory)
    if live:
        return await _live(directory, once, picture, mermaid, url, as_json)
    if directory is None:
        raise Misused("expected a directory with a composition, or --live")
    _show(Sketch(read_sound(directory)), picture, mermaid, as_json)
    return 0


async def _live(
    directory: Path | None, once: bool, picture: Path | None, mermaid: bool, url: str | None, as_json: bool
) -> int:
    from penstock.cli._observer import observing, sketch_of
    from penstock.composition.files import read_sound

    files = read_sound(directory, environment(url)) if directory else None
    async with observing(url or DEFAULT_URL, files) as observer:
        if not once:
            return await _follow(observer, as_json)
        await observer.sample()
        await asyncio.sleep(INTERVAL)
        samples = await observer.sample()
        _show(sketch_of(samples), picture, mermaid, as_json, samples)
    if not (directory or as_json or samples.last.queues or sketch_of(samples).composition.parts):
        complain(f"no service has registered at {masked(url or DEFAULT_URL)}: start one, {NAME_ANOTHER}", 0)
    return 0


async def _follow(observer: "Observer", as_json: bool) -> int:
    """Take and show samples until ctrl-C: in place on a terminal, else one below the other."""
    from rich.live import Live

    from penstock.cli._observer import sketch_of

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    in_place = sys.stdout.isatty() and not as_json
    with Live(auto_refresh=False) if in_place else nullcontext() as screen:
        while not stop.is_set():
            samples = await observer.sample()
            if screen:
                screen.update(_tree(sketch_of(samples), samples), refresh=True)
            else:
                _show(sketch_of(samples), None, False, as_json, samples)
            with suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):
                    await stop.wait()
    return 0


def _show(
    sketch: "Sketch", picture: Path | None, mermaid: bool, as_json: bool, samples: "Samples | None" = None
) -> None:
    if picture:
        from penstock.composition.draw.svg import svg

        picture.write_bytes(svg(sketch))
    elif mermaid:
        from penstock.composition.draw.mermaid import mermaid as written

        typer.echo(written(sketch), nl=False)
    elif as_json:
        print_json(_as_json(sketch, samples))
    else:
        from rich.console import Console

        width = None if sys.stdout.isatty() else 10_000
        Console(width=width, highlight=False).print(_tree(sketch, samples))


def _tree(sketch: "Sketch", samples: "Samples | None") -> "Tree":
    from penstock.cli._observer import queue_words
    from penstock.cli._tree import Drawing

    if samples is None:
        return Drawing(sketch, str(sketch.composition.directory)).tree()
    where = sketch.composition.directory or "What has registered"
    unreachable = [f"{server} does not answer: {why}" for server, why in samples.last.unreachable.items()]
    queues = {queue_words(each): each.is_left for each in samples.last.queues}
    return Drawing(sketch, f"{where}, {clock(samples.last.when)} UTC", unreachable, queues).tree()


def _as_json(sketch: "Sketch", samples: "Samples | None") -> dict[str, Any]:
    parts = [
        {
            "name": part.name,
            "service": part.service,
            "namespace": part.namespace,
            "reads": [asdict(end.place) for end in part.using("reads")],
            "writes": [asdict(end.place) for end in part.using("writes")],
            **(samples.service_as_json(part.namespace) if samples else {}),
        }
        for part in sketch.composition.parts
    ]
    lists = [
        {
            **asdict(place),
            "kind": "stream" if sketch.is_stream(place) else "list",
            "from_others": sketch.from_others(place),
            "to_others": sketch.to_others(place),
            **(asdict(samples.stats(place)) if samples else {}),
        }
        for place in sketch.places
    ]
    moment: dict[str, Any] = {"at": samples.last.when, "silent": samples.last.unreachable} if samples else {}
    if samples:
        moment["queues"] = [asdict(each) for each in samples.last.queues]
    return {"composition": sketch.composition.directory, **moment, "parts": parts, "lists": lists}
