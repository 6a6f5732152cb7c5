"""Every message tracked on two branches, checked: ``python -m compose.tracked.demo [--json]`` or ``make demo-tracked``.

It uses an embedded server, or the one of the variable REDIS. The exit status is 0 only if nothing was lost or doubled,
every message ended as expected on its branch, all sums hold, and every process ended with 0 on SIGTERM.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha1
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis

from compose import runner
from compose.bars import Bars, Snapshot
from compose.comparison import Comparison
from compose.ending import Ending
from compose.keyspace import Keyspace
from compose.outcome import Outcome
from compose.tables import accounts, content, side_by_side
from compose.tracked.counts import Counts
from compose.tracked.worker import WARM
from penstock.accounting.audit import Audit, audit
from penstock.accounting.tracked import TrackedAudit, audit_tracked
from penstock.composition.procfile import ProcessGroup
from penstock.keys import Keys
from penstock.tracking.dead_letters import newest_first

HERE: Final = Path(__file__).parent
ROWS: Final = (HERE / "seattle-temps.csv").read_bytes().splitlines()[1:]
BATCH: Final = 500
FANOUT: Final = Keys("tracked:mpush")
ARCHIVE: Final = Keys("tracked:archive")
ALERT: Final = Keys("tracked:alert")
SOURCE: Final = "tracked:in"
KEPT: Final = "tracked:archive:kept"
"""List of messages that the worker of the archive branch has handled."""
TAKEN: Final = "tracked:alert:taken"
"""List of messages that the worker of the alert branch has taken and never finishes."""
ATTEMPTS: Final = 3
"""The value of ``attempts`` in mdispatch-alert.yaml."""
KEYSPACE: Final = Keyspace(
    "tracked",
    (FANOUT, ARCHIVE, ALERT, Keys("tracked:monitor")),
    keys="in|(mpush|archive|alert|monitor):.+",
    in_flight="in|(archive|alert):(in|out|working|done|message:deadlines|message:delayed)"
    "|(mpush|archive|alert|monitor):pending(:.+)?",
)
COUNTERS: Final = {"delivered": "delivered", "done": "done", "timeout": "timed out", "retry": "retried", "dead": "dead"}
"""Metrics that stand behind a bar, and their headings."""


def main(directory: Path = HERE, rows: Sequence[bytes] = ROWS) -> None:
    runner.main("compose.tracked.demo", __doc__, lambda url: run(url, rows, directory))


async def run(url: str, rows: Sequence[bytes], directory: Path = HERE) -> Outcome:
    """Send ``rows``, oldest first, through the composition in ``directory`` on the server at ``url``."""
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

    async def look() -> Snapshot:
        held, counts = bool(await redis.llen(SOURCE)), dict[str, int]()
        states = {"pushed": " ".join(f"{heading:>6}" for heading in COUNTERS.values())}
        for name, keys in (("archive", ARCHIVE), ("alert", ALERT)):
            numbers, counts[name], moves = await _progress(redis, keys)
            states[name] = " ".join(f"{many:>{max(6, len(COUNTERS[metric]))},}" for metric, many in numbers.items())
            held = held or moves
        left = held or (min(counts.values()) < len(rows) and await KEYSPACE.left(redis))
        return Snapshot(counts, bool(left), states)

    with Bars(dict.fromkeys(("pushed", "archive", "alert"), len(rows)), look, width=9) as bars:
        await bars.push(redis, SOURCE, rows, BATCH)
        await bars.until_through(composition)


async def _progress(redis: "Redis", keys: Keys) -> tuple[dict[str, int], int, bool]:
    """Return the ``COUNTERS`` of a branch, how many messages have ended there, and whether any is on its way."""
    fields = [*((metric, "count") for metric in (*COUNTERS, "expired")), ("done:late", "completed")]
    async with redis.pipeline(transaction=True) as transaction:
        for metric, field in fields:
            transaction.hget(keys.metric(metric), field)
        transaction.zcard(keys.deadlines)
        transaction.zcard(keys.delayed)
        for name in ("in", "out", "working", "done"):
            transaction.llen(f"{keys.namespace}:{name}")
        replies: list[Any] = await transaction.execute()
    *numbers, expired, late = (int(reply or 0) for reply in replies[: len(fields)])
    counts = dict(zip(COUNTERS, numbers, strict=True))
    return counts, counts["done"] + counts["dead"] + expired + late, any(replies[len(fields) :])


async def read_outcome(redis: "Redis", rows: Sequence[bytes], statuses: Mapping[str, int]) -> Outcome:
    """Compare what is on the server with what ``rows`` must lead to.

    In the archive, every reading is done once; those of at least ``WARM`` fail once before. In the other branch, every
    reading is taken once an attempt, and is then one dead letter.
    """
    many, warm = len(rows), [row for row in rows if float(row.rpartition(b",")[2]) >= WARM]
    expected = {
        ARCHIVE: dict.fromkeys(("registered", "delivered", "done"), many)
        | dict.fromkeys(("failed attempts", "retries"), len(warm)),
        ALERT: dict.fromkeys(("registered", "delivered", "dead"), many)
        | {"timeouts": ATTEMPTS * many, "retries": (ATTEMPTS - 1) * many},
    }
    counts = {keys: await Counts.read(redis, keys) for keys in expected}
    letters = {keys: [each async for chunk in newest_first(redis, keys) for each in chunk] for keys in expected}
    dead = {keys: [each.raw if each.message is None else each.message for each in letters[keys]] for keys in expected}
    events = await runner.count_events(redis, ARCHIVE, lambda event: event.xid)
    known = {sha1(row).hexdigest(): row for row in rows}

    def rows_of(*kinds: str) -> list[bytes]:
        """Return the row of each event of these kinds; for an unknown row, its correlation id."""
        amounts = {xid: sum(counts[kind] for kind in kinds) for xid, counts in events.items()}
        return [known.get(xid, xid.encode()) for xid, many in amounts.items() for _ in range(many)]

    comparisons = [
        Comparison.compare(f"{ARCHIVE.namespace}: done", rows, rows_of("done", "late"), ordered=False),
        Comparison.compare(f"{ARCHIVE.namespace}: failed once", warm, rows_of("failed"), ordered=False),
        await Comparison.read(redis, KEPT, rows, ordered=False),
        Comparison.compare(ARCHIVE.dead, [], dead[ARCHIVE], ordered=False),
        await Comparison.read(redis, TAKEN, [*rows] * ATTEMPTS, ordered=False),
        Comparison.compare(ALERT.dead, rows, dead[ALERT], ordered=False),
    ]
    audits: dict[str, Audit | TrackedAudit | None] = {FANOUT.namespace: await audit(redis, FANOUT)}
    audits |= {keys.namespace: await audit_tracked(redis, keys) for keys in expected}
    ending = await Ending.read(KEYSPACE, statuses, redis)
    said = Counter(
        (keys.namespace, each.text("reason"), each.text("attempts")) for keys in expected for each in letters[keys]
    )
    return Outcome(
        ending,
        comparisons=comparisons,
        audits=audits,
        owed={f"{keys.namespace}:in": many for keys in expected},
        problems=[
            *(line for keys, each in counts.items() for line in each.differences(keys.namespace, expected[keys])),
            *(
                f"{branch}: {count:,} dead letters say {reason or 'no reason'} after {attempts or 'no'} attempts"
                for (branch, reason, attempts), count in said.items()
                if (reason, attempts) != ("timeout", str(ATTEMPTS))
            ),
        ],
        shown=[
            side_by_side(
                "What happened on each branch",
                [(keys.namespace, [{"pushed": many, **each.numbers}, each.spans]) for keys, each in counts.items()],
            ),
            content(comparisons, "in: what the readings themselves lead to"),
            *accounts(audits.values()),
            ending.line,
        ],
        success="Nothing lost, nothing doubled: every message ended once, done or dead",
        data={
            "pushed": many,
            "legs": {keys.namespace: {**each.numbers, "responseTime": each.seconds} for keys, each in counts.items()},
            "content": {each.name: each.counts() for each in comparisons},
            "audits": {name: found and asdict(found) | {"holds": found.holds} for name, found in audits.items()},
        },
    )


if __name__ == "__main__":
    main()
