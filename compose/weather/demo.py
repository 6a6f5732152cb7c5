"""The weather composition on real input, checked: ``python -m compose.weather.demo [--json]``, or ``make demo``.

It uses an embedded server, or the one of the variable REDIS. The exit status is 0 only if nothing was lost or doubled,
the audit holds, and every process ended with 0 on SIGTERM.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from compose import runner
from compose.runner import Snapshot
from compose.weather.keyspace import BRANCHES, KEYS, KEYSPACE, SOURCE
from compose.weather.outcome import Outcome, read_outcome
from compose.weather.show import show
from penstock.composition.procfile import ProcessGroup

HERE: Final = Path(__file__).parent
BATCH: Final = 50


def main(directory: Path = HERE) -> None:
    rows = (HERE / "seattle-weather.csv").read_bytes().splitlines()[1:]
    runner.main("compose.weather.demo", __doc__, lambda url: run(url, rows, directory), show)


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Send ``rows``, oldest first, through the composition in ``directory`` on the server at ``url``.

    Raise ``PenstockError`` if that server holds data of a composition that is no demo.
    """
    return await runner.run_composition(
        url,
        directory,
        KEYSPACE,
        lambda redis, composition: _carry(redis, rows, composition),
        lambda redis, statuses: read_outcome(redis, rows, statuses),
    )


async def _carry(redis: "Redis", rows: Sequence[bytes], composition: ProcessGroup) -> None:
    """Push ``rows`` and wait until they are through, or no longer can be; show progress bars."""
    copies = len(rows) * len(BRANCHES)
    with runner.progress() as progress:
        pushed = progress.add_task("pushed", total=len(rows))
        delivered = progress.add_task("delivered", total=copies)
        consumed = progress.add_task("consumed", total=copies)

        async def take_snapshot() -> Snapshot:
            waiting = await KEYSPACE.left(redis)
            now = await _delivered(redis), sum([await redis.llen(handled) for handled in BRANCHES.values()])
            progress.update(delivered, completed=now[0])
            progress.update(consumed, completed=now[1])
            return Snapshot(now, through=now[1] >= copies, waiting=bool(waiting))

        await runner.push(redis, SOURCE, rows, BATCH, lambda amount: progress.advance(pushed, amount))
        await runner.until_through(composition, take_snapshot)


async def _delivered(redis: "Redis") -> int:
    return int(await redis.hget(KEYS.metric("delivered"), "count") or 0)


if __name__ == "__main__":
    main()
