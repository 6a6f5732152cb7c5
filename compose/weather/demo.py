"""The weather composition on real input, checked: ``python -m compose.weather.demo [--json]``, or ``make demo``.

It uses an embedded server, or the one of the variable REDIS. The exit status is 0 only if nothing was lost or doubled,
the audit holds, and every process ended with 0 on SIGTERM.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from redis.asyncio import Redis

from compose import runner
from compose.bars import Bars, Snapshot
from compose.comparison import Comparison
from compose.ending import Ending
from compose.keyspace import Keyspace
from compose.outcome import Outcome
from compose.tables import accounts, content
from compose.weather.consumer import HANDLED
from compose.weather.day import Day
from penstock.accounting.audit import audit
from penstock.composition.procfile import ProcessGroup
from penstock.inspect.redis_replies import Reply, format_typed
from penstock.keys import Keys
from penstock.metrics import read_metrics

HERE: Final = Path(__file__).parent
ROWS: Final = (HERE / "seattle-weather.csv").read_bytes().splitlines()[1:]
BATCH: Final = 50
KEYS: Final = Keys("weather")
SOURCE: Final = "weather:in"
STORMS: Final = "weather:storms"
REPORTS: Final = "weather:reports"
BRANCHES: Final = {f"weather:{role}": handled for role, handled in HANDLED.items()}
"""Lists that mpush fills, each with the list of messages that its consumer has settled."""
KEYSPACE: Final = Keyspace(
    KEYS.namespace,
    (KEYS,),
    keys=r"\d+|id|ids|owners|holdings|lists|shape|lease|events|done|dead|metrics:\w+|in|pending(:\d+)?|storms|reports"
    r"|archived|(alarm|report):handled|(archive|alarm|report)(:working:.+|:dead)?",
    in_flight="in|pending|pending:.+|archive|alarm|report|dead|.+:working:.+|.+:dead",
)


def main(directory: Path = HERE) -> None:
    runner.main("compose.weather.demo", __doc__, lambda url: run(url, ROWS, directory))


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Send ``rows``, oldest first, through the composition in ``directory`` on the server at ``url``."""
    return await runner.run_composition(
        url,
        directory,
        KEYSPACE,
        lambda redis, composition: _carry(redis, rows, composition),
        lambda redis, statuses: read_outcome(redis, rows, statuses),
    )


async def _carry(redis: "Redis", rows: Sequence[bytes], composition: ProcessGroup) -> None:
    """Push ``rows`` and wait until they are through, or no longer can be."""

    async def look() -> Snapshot:
        waiting = await KEYSPACE.left(redis)
        delivered = int(await redis.hget(KEYS.metric("delivered"), "count") or 0)
        consumed = sum([await redis.llen(handled) for handled in BRANCHES.values()])
        return Snapshot({"delivered": delivered, "consumed": consumed}, waiting=bool(waiting))

    copies = len(rows) * len(BRANCHES)
    with Bars({"pushed": len(rows), "delivered": copies, "consumed": copies}, look) as bars:
        await bars.push(redis, SOURCE, rows, BATCH)
        await bars.until_through(composition)


async def read_outcome(redis: "Redis", rows: Sequence[bytes], statuses: Mapping[str, int]) -> Outcome:
    """Compare what is on the server with what ``rows``, oldest first, must lead to."""
    days = [Day.read(row) for row in rows]
    comparisons = [await Comparison.read(redis, key, rows, name=name) for name, key in BRANCHES.items()] + [
        await Comparison.read(redis, STORMS, [day.alarm().encode() for day in days if day.storm]),
        await Comparison.read(redis, REPORTS, [day.report().encode() for day in days]),
    ]
    counted, metrics = await audit(redis, KEYS), await read_metrics(redis, KEYS)
    return Outcome(
        await Ending.read(KEYSPACE, statuses, redis),
        comparisons=comparisons,
        audits={KEYS.namespace: counted},
        owed=dict.fromkeys(BRANCHES, len(rows)),
        shown=[
            content(comparisons, "storms and reports: in is what the rows themselves say"),
            *accounts([counted]),
            *(_as_in_redis_cli(name, fields) for name, fields in metrics.items()),
        ],
        success=f"Nothing lost, nothing doubled. Each ended with status 0 on SIGTERM: {', '.join(statuses)}",
        data={
            "lists": {each.name: each.figures() for each in comparisons},
            "audit": counted and asdict(counted),
            "metrics": metrics,
        },
    )


def _as_in_redis_cli(metric: str, fields: Mapping[str, str]) -> str:
    reply: list[Reply] = [word.encode() for pair in fields.items() for word in pair]
    return f"redis> hgetall {KEYS.metric(metric)}\n{format_typed(reply).decode()}"


if __name__ == "__main__":
    main()
