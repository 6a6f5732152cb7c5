"""Generated lifecycles of messages, archived as a pipeline would."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

NOON: Final = 1_767_225_600 + 12 * 3_600
"""2026-01-01 12:00 UTC."""
ALLOWED: Final = 10.0
SCHEMA: Final = pa.schema(
    {
        "entry": pa.string(),
        "place": pa.int32(),
        "number": pa.int64(),
        "event": pa.string(),
        "id": pa.string(),
        "xid": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "queue": pa.string(),
        "service": pa.string(),
        "attempt": pa.int32(),
        "seconds": pa.float64(),
        "timeout": pa.float64(),
    }
)


@dataclass(frozen=True)
class ArchivedEvent:
    """An event; ``at`` in whole milliseconds since the epoch."""

    event: str
    id: str
    at: int
    attempt: int | None = 1
    seconds: float | None = None
    namespace: str = "shop"
    xid: str = ""
    queue: str = "work"
    service: str = "1"
    timeout: float | None = ALLOWED
    number: int | None = None
    entry: str = ""
    place: int = 0


def generate(
    many: int, seed: int, start: float = NOON, every: float = 1.0, namespace: str = "shop"
) -> list[ArchivedEvent]:
    """Return events of ``many`` messages, some of which time out, fail, die, are late, expire or stay open."""
    rng = random.Random(seed)
    events: list[ArchivedEvent] = []
    for id in range(1, many + 1):
        events += _lifecycle(rng, str(id), int((start + id * every) * 1000), namespace)
    return in_order(events)


def _lifecycle(rng: random.Random, id: str, born: int, namespace: str) -> Iterator[ArchivedEvent]:
    def row(event: str, at: int, attempt: int | None, seconds: float | None = None) -> ArchivedEvent:
        return ArchivedEvent(event, id, at, attempt, seconds, namespace, f"order-{id}")

    yield row("registered", born, 1)
    if rng.random() < 0.02:  # nobody takes it
        over = born + 30_000
        yield row("queueTimeout", over, 1, 30.0)
        yield row("dead", over, 1, 30.0)
        return
    delivered, attempt = born, 1
    while True:
        spent = rng.lognormvariate(0, 1.2)
        if spent < ALLOWED and rng.random() < 0.9:
            end = "late" if rng.random() < 0.02 else "expired" if rng.random() < 0.01 else "done"
            if rng.random() > 0.02:  # else it stays open
                yield row(end, delivered + int(spent * 1000), attempt, None if end == "expired" else round(spent, 6))
            return
        failed = rng.random() < 0.4
        over = delivered + int((spent % ALLOWED if failed else ALLOWED + 0.003) * 1000)
        yield row("failed" if failed else "timeout", over, attempt, (over - delivered) / 1000)
        over += 2 if failed else 0
        if attempt == 3:
            yield row("dead", over, attempt, (over - born) / 1000)
            return
        attempt, delivered = attempt + 1, over
        yield row("retry", over, attempt, (over - born) / 1000)


def in_order(events: Iterable[ArchivedEvent]) -> list[ArchivedEvent]:
    """Sort by time and give numbers and entries as a namespace would: events of one moment share an entry."""
    rows: list[ArchivedEvent] = []
    by_time = sorted(events, key=lambda each: (each.namespace, each.at))
    for _, mine in groupby(by_time, key=lambda each: each.namespace):
        number = 0
        for at, together in groupby(mine, key=lambda each: each.at):
            for place, each in enumerate(together):
                number += 1
                rows.append(replace(each, entry=f"{at}-0", place=place, number=number))
    return rows


def archive(directory: Path, events: Iterable[ArchivedEvent], batch: str = "x-000000000") -> str:
    """Write ``events`` to an archive in ``directory``. Return ``directory`` as text."""
    events = sorted(events, key=_partition)
    for (date, namespace), mine in groupby(events, key=_partition):
        rows = list(mine)
        place = directory / "events" / f"date={date}" / f"namespace={quote(namespace, safe='')}" / f"batch={batch}"
        place.mkdir(parents=True)
        columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names if name != "at"}
        columns["at"] = [row.at * 1000 for row in rows]
        pq.write_table(pa.table({name: columns[name] for name in SCHEMA.names}, SCHEMA), place / "part.parquet")
    return str(directory)


def _partition(each: ArchivedEvent) -> tuple[str, str]:
    return str(datetime.fromtimestamp(each.at / 1000, UTC).date()), each.namespace
