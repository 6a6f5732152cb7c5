"""Every message tracked on two legs, checked: ``python -m compose.tracked.demo [--json]``, or ``make demo-tracked``.

On a server of its own, or on the one that REDIS names. Exits 0 only if nothing was lost or doubled, every message ended
as its leg says, all sums hold and every process ended with 0 on SIGTERM.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from rich.progress import Progress, TaskID, TextColumn

from compose import runner
from compose.runner import Snapshot
from compose.tracked.keyspace import ALERT, ARCHIVE, KEYSPACE, SOURCE, waiting
from compose.tracked.outcome import Outcome, read_outcome
from compose.tracked.show import show
from penstock.composition.procfile import Composition
from penstock.keys import Keys

HERE: Final = Path(__file__).parent
ROWS: Final = (HERE / "seattle-temps.csv").read_bytes().splitlines()[1:]
BATCH: Final = 500
SEEN: Final = {"delivered": "delivered", "done": "done", "timeout": "timed out", "retry": "retried", "dead": "dead"}
"""Metrics that a bar shows, and their headings."""


def main(directory: Path = HERE, rows: Sequence[bytes] = ROWS) -> None:
    runner.main("compose.tracked.demo", __doc__, lambda url: run(url, rows, directory), show)


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Send ``rows``, oldest first, through the composition in ``directory`` on the server at ``url``.

    Raise ``PenstockError`` if that server holds data of a composition that is no demo.
    """
    # No /metrics: the port of monitor.yaml may be taken on this machine.
    return await runner.run_composition(
        url,
        directory,
        KEYSPACE,
        lambda redis, composition: carry(redis, rows, composition),
        lambda redis, statuses: read_outcome(redis, rows, statuses),
        MONITOR_METRICS_PORT="0",
    )


async def carry(redis: "Redis", rows: Sequence[bytes], composition: Composition) -> None:
    """Push ``rows`` and wait until each has ended on both legs, or cannot any more."""
    columns = (TextColumn(f"{{task.fields[seen][{metric}]}}", justify="right") for metric in SEEN)
    with runner.progress(*columns, width=9) as progress:
        # Beside the first bar stand words, the headings of the numbers beside the others.
        pushed = progress.add_task("pushed", total=len(rows), seen=SEEN)
        bars = {
            keys: progress.add_task(keys.namespace.partition(":")[2], total=len(rows), seen=dict.fromkeys(SEEN, "0"))
            for keys in (ARCHIVE, ALERT)
        }

        async def look() -> Snapshot:
            snapshots = [await _look(redis, keys, progress, bar) for keys, bar in bars.items()]
            counts = tuple(count for snapshot in snapshots for count in snapshot.counts)
            through = all(snapshot.through for snapshot in snapshots)
            held = any(snapshot.waiting for snapshot in snapshots) or await redis.llen(SOURCE)
            return Snapshot(counts, through, waiting=bool(held or (not through and await KEYSPACE.left(redis))))

        await runner.push(redis, SOURCE, rows, BATCH, lambda amount: progress.advance(pushed, amount))
        await runner.until_through(composition, look)


async def _look(redis: "Redis", keys: Keys, progress: Progress, bar: TaskID) -> Snapshot:
    """Return the progress of one leg, and show it by its bar; a message has ended once it is done, dead or expired."""
    async with redis.pipeline(transaction=True) as transaction:
        for metric in SEEN:
            transaction.hget(keys.metric(metric), "count")
        transaction.hget(keys.metric("done:late"), "completed")
        transaction.hget(keys.metric("expired"), "count")
        transaction.zcard(keys.deadlines)
        transaction.zcard(keys.delayed)
        for name in waiting(keys):
            transaction.llen(name)
        replies: list[Any] = await transaction.execute()
    *counts, late, expired = (int(reply or 0) for reply in replies[: len(SEEN) + 2])
    seen = dict(zip(SEEN, counts, strict=True))
    ended = seen["done"] + late + seen["dead"] + expired
    progress.update(bar, completed=ended, seen={metric: f"{count:,}" for metric, count in seen.items()})
    total = progress.tasks[bar].total or 0
    return Snapshot((*counts, late, expired), ended >= total, any(replies[len(SEEN) + 2 :]))


if __name__ == "__main__":
    main()
