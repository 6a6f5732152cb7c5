"""The weather composition on real input, checked: ``python -m compose.weather.demo [--json]``, or ``make demo``.

On a server of its own, or on the one that REDIS names. Exits 0 only if nothing was lost or doubled, the audit holds and
every process ended with 0 on SIGTERM.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compose.weather.keyspace import KEYS, LEGS, SOURCE, left, prepare
from compose.weather.outcome import Outcome, read_outcome
from compose.weather.show import show
from penstock.composition import Composition
from penstock.connection import connect, masked
from penstock.embedded import EmbeddedServer
from penstock.errors import PenstockError

HERE: Final = Path(__file__).parent
BATCH: Final = 50
PATIENCE: Final = 30.0
"""Longest time until everything has to be through (s)."""
STANDSTILL: Final = 1.0
"""With nothing on its way any more, what has not come by then is lost (s)."""


def main(directory: Path = HERE) -> None:
    parser = argparse.ArgumentParser(prog="python -m compose.weather.demo", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    as_json = parser.parse_args().json
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    rows = (HERE / "seattle-weather.csv").read_bytes().splitlines()[1:]
    named = os.environ.get("REDIS")
    try:
        with nullcontext() if named else EmbeddedServer() as embedded:
            outcome = asyncio.run(run(embedded.url if embedded else str(named), rows, directory))
    except (PenstockError, RedisError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    if as_json:
        print(json.dumps(outcome.figures(), indent=2))
    else:
        show(outcome, Console())
    sys.exit(1 if outcome.differences else 0)


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Send ``rows``, oldest first, through the composition in ``directory`` on the server at ``url``.

    Raises ``PenstockError`` where that server holds data of a composition which is not a demo's.
    """
    said: list[Any] = []
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MPUSH_")} | {"REDIS": url}
    print(f"weather: {len(rows):,} days through {directory / 'Procfile'} on {masked(url)}", file=sys.stderr)
    async with connect(url) as redis:
        await prepare(redis)
        with Composition(directory, write=said.append) as composition:
            composition.start(environ)
            await _carry(redis, rows, composition)
            await asyncio.to_thread(composition.stop)
        outcome = await read_outcome(redis, rows, composition.statuses)
    if outcome.differences:
        for line in said:
            print(f"{line.name}: {line.data.decode(errors='backslashreplace').rstrip()}", file=sys.stderr)
    return outcome


async def _carry(redis: "Redis", rows: Sequence[bytes], composition: Composition) -> None:
    """Push ``rows`` and wait until they are through, or until that cannot be any more; a bar shows how far they are."""
    columns = (TextColumn("{task.description:9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        pushed = progress.add_task("pushed", total=len(rows))
        delivered = progress.add_task("delivered", total=len(rows) * len(LEGS))
        consumed = progress.add_task("consumed", total=len(rows) * len(LEGS))
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            await redis.lpush(SOURCE, *batch)
            progress.advance(pushed, len(batch))
        until = time.monotonic() + PATIENCE
        seen, since = (0, 0), time.monotonic()
        while time.monotonic() < until and len(composition.running) == len(composition.commands):
            waiting = await left(redis)
            now = await _delivered(redis), sum([await redis.llen(handled) for handled in LEGS.values()])
            progress.update(delivered, completed=now[0])
            progress.update(consumed, completed=now[1])
            if now != seen:
                seen, since = now, time.monotonic()
            if not waiting and (now[1] >= len(rows) * len(LEGS) or time.monotonic() - since > STANDSTILL):
                return
            composition.poll()
            await asyncio.sleep(0.02)


async def _delivered(redis: "Redis") -> int:
    return int(await redis.hget(KEYS.metric("delivered"), "count") or 0)


if __name__ == "__main__":
    main()
