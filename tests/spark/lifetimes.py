"""An archive of made-up lives of messages, as a pipeline would have written it."""

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
class Told:
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


def lives(many: int, seed: int, start: float = NOON, every: float = 1.0, namespace: str = "shop") -> list[Told]:
    """Messages registered one after the other, of which some time out, fail, die, are late, expire or stay open."""
    rng = random.Random(seed)
    told: list[Told] = []
    for id in range(1, many + 1):
        told += _life(rng, str(id), int((start + id * every) * 1000), namespace)
    return in_order(told)


def _life(rng: random.Random, id: str, born: int, namespace: str) -> Iterator[Told]:
    def tell(event: str, at: int, attempt: int | None, seconds: float | None = None) -> Told:
        return Told(event, id, at, attempt, seconds, namespace, f"order-{id}")

    yield tell("registered", born, 1)
    if rng.random() < 0.02:  # nobody takes it
        over = born + 30_000
        yield tell("queueTimeout", over, 1, 30.0)
        yield tell("dead", over, 1, 30.0)
        return
    delivered, attempt = born, 1
    while True:
        spent = rng.lognormvariate(0, 1.2)
        if spent < ALLOWED and rng.random() < 0.9:
            end = "late" if rng.random() < 0.02 else "expired" if rng.random() < 0.01 else "done"
            if rng.random() > 0.02:  # else it stays open
                yield tell(end, delivered + int(spent * 1000), attempt, None if end == "expired" else round(spent, 6))
            return
        failed = rng.random() < 0.4
        over = delivered + int((spent % ALLOWED if failed else ALLOWED + 0.003) * 1000)
        yield tell("failed" if failed else "timeout", over, attempt, (over - delivered) / 1000)
        over += 2 if failed else 0
        if attempt == 3:
            yield tell("dead", over, attempt, (over - born) / 1000)
            return
        attempt, delivered = attempt + 1, over
        yield tell("retry", over, attempt, (over - born) / 1000)


def in_order(told: Iterable[Told]) -> list[Told]:
    """By time, with the numbers and entries that a namespace would give them: what is at one moment is one entry."""
    rows: list[Told] = []
    by_time = sorted(told, key=lambda each: (each.namespace, each.at))
    for _, mine in groupby(by_time, key=lambda each: each.namespace):
        number = 0
        for at, together in groupby(mine, key=lambda each: each.at):
            for place, each in enumerate(together):
                number += 1
                rows.append(replace(each, entry=f"{at}-0", place=place, number=number))
    return rows


def archive(directory: Path, told: Iterable[Told], batch: str = "x-000000000") -> str:
    """Write them; returns ``directory`` as text."""
    told = sorted(told, key=_partition)
    for (date, namespace), mine in groupby(told, key=_partition):
        rows = list(mine)
        place = directory / "events" / f"date={date}" / f"namespace={quote(namespace, safe='')}" / f"batch={batch}"
        place.mkdir(parents=True)
        columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names if name != "at"}
        columns["at"] = [row.at * 1000 for row in rows]
        pq.write_table(pa.table({name: columns[name] for name in SCHEMA.names}, SCHEMA), place / "part.parquet")
    return str(directory)


def _partition(each: Told) -> tuple[str, str]:
    return str(datetime.fromtimestamp(each.at / 1000, UTC).date()), each.namespace
