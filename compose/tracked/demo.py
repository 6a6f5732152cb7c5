"""Every message tracked on two branches, checked: ``python -m compose.tracked.demo [--json]`` or ``make demo-tracked``.

It uses an embedded server, or the one of the variable REDIS. The exit status is 0 only if nothing was lost or doubled,
every message ended as expected on its branch, all sums hold, and every process ended with 0 on SIGTERM.
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
from penstock.composition.procfile import ProcessGroup
from penstock.keys import Keys

HERE: Final = Path(__file__).parent
ROWS: Final = (HERE / "seattle-temps.csv").read_bytes().splitlines()[1:]
BATCH: Final = 500
COUNTERS: Final = {"delivered": "delivered", "done": "done", "timeout": "timed out", "retry": "retried", "dead": "dead"}
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


async def carry(redis: "Redis", rows: Sequence[bytes], composition: ProcessGroup) -> None:
    """Push ``rows`` and wait until each has ended on both branches, or no longer can."""
    columns = (TextColumn(f"{{task.fields[counts][{metric}]}}", justify="right") for metric in COUNTERS)
    with runner.progress(*columns, width=9) as progress:
        # The first bar shows the headings; the others show the numbers.
        pushed = progress.add_task("pushed", total=len(rows), counts=COUNTERS)
        zeros = dict.fromkeys(COUNTERS, "0")
        bars = {
            keys: progress.add_task(keys.namespace.partition(":")[2], total=len(rows), counts=zeros)
            for keys in (ARCHIVE, ALERT)
        }

        async def take_snapshot() -> Snapshot:
            snapshots = [await _branch_snapshot(redis, keys, progress, bar) for keys, bar in bars.items()]
            counts = tuple(count for snapshot in snapshots for count in snapshot.counts)
            through = all(snapshot.through for snapshot in snapshots)
            held = any(snapshot.waiting for snapshot in snapshots) or await redis.llen(SOURCE)
            return Snapshot(counts, through, waiting=bool(held or (not through and await KEYSPACE.left(redis))))

        await runner.push(redis, SOURCE, rows, BATCH, lambda amount: progress.advance(pushed, amount))
        await runner.until_through(composition, take_snapshot)


async def _branch_snapshot(redis: "Redis", keys: Keys, progress: Progress, bar: TaskID) -> Snapshot:
    """Return the progress of one branch and update its bar; a message has ended once it is done, dead or expired."""
    async with redis.pipeline(transaction=True) as transaction:
        for metric in COUNTERS:
            transaction.hget(keys.metric(metric), "count")
        transaction.hget(keys.metric("done:late"), "completed")
        transaction.hget(keys.metric("expired"), "count")
        transaction.zcard(keys.deadlines)
        transaction.zcard(keys.delayed)
        for name in waiting(keys):
            transaction.llen(name)
        replies: list[Any] = await transaction.execute()
    *counts, late, expired = (int(reply or 0) for reply in replies[: len(COUNTERS) + 2])
    by_metric = dict(zip(COUNTERS, counts, strict=True))
    ended = by_metric["done"] + late + by_metric["dead"] + expired
    progress.update(bar, completed=ended, counts={metric: f"{count:,}" for metric, count in by_metric.items()})
    total = progress.tasks[bar].total or 0
    return Snapshot((*counts, late, expired), ended >= total, any(replies[len(COUNTERS) + 2 :]))


if __name__ == "__main__":
    main()
