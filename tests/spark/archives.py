"""Write archives without a pipeline, from columns or from events in Redis, with matching counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType
from redis.asyncio import Redis

from penstock.base.encoding import encoded
from penstock.base.keys import Keys
from penstock.spark.streams import RedisStream
from tests.support.tracked import policy, write

FAN: Final = Keys("t:mpush")
DAY: Final = "2026-01-01"
START: Final = 1_767_225_600_000_000
"""``DAY`` in microseconds since the epoch."""


@dataclass
class Lane:
    """The messages of one branch of ``t:mpush``: their numbers in order of arrival; ids count from 1."""

    name: str
    messages: Any
    open: Sequence[int] = ()
    """Ids of messages that have not ended; all others are done."""
    more: list[tuple[str, int]] = field(default_factory=list)
    """Further events, each with the id of its message."""

    @property
    def keys(self) -> Keys:
        return Keys(f"t:{self.name}")

    @property
    def source(self) -> str:
        return f"t:{self.name}:in"

    def columns(self) -> dict[str, Any]:
        """Return the events: all messages are registered, then all are done."""
        ids = np.arange(1, len(self.messages) + 1)
        ended = np.setdiff1d(ids, np.array(self.open, dtype=ids.dtype))
        more = np.array([id for _, id in self.more], dtype=ids.dtype)
        whose = np.concatenate([ids, ended, more])
        events = ["registered"] * len(ids) + ["done"] * len(ended) + [event for event, _ in self.more]
        xids = pc.binary_join_element_wise("x", pa.array(np.asarray(self.messages)[whose - 1]).cast("string"), "")
        return {"event": events, "id": pa.array(whose).cast("string"), "xid": xids}


def archive(place: Path, namespace: str, columns: Mapping[str, Any], *, batch: str = "a-0", first: int = 1) -> None:
    """Write events as the pipeline does; ``columns`` need not have all columns."""
    count = len(columns["id"])
    number = np.arange(first, first + count)
    entry = pc.binary_join_element_wise(str(START // 1000), pa.array(number // 100).cast("string"), "-")
    whole: dict[str, Any] = {
        "entry": entry,
        "place": pa.array(number % 100, "int32"),
        "number": number,
        "at": pa.array(START + number, pa.timestamp("us", "UTC")),
        "queue": pa.array(["out"] * count),
        "service": pa.array(["1"] * count),
        "attempt": pa.array(np.ones(count), "int32"),
        "seconds": pa.nulls(count, "float64"),
        **columns,
    }
    directory = place / "events" / f"date={DAY}" / f"namespace={quote(namespace, safe='')}" / f"batch={batch}"
    directory.mkdir(parents=True)
    pq.write_table(pa.table(whole), directory / f"part-{first}.parquet", compression="zstd")


async def counters(redis: "Redis", *lanes: Lane, given: int | None = None) -> None:
    """Write the counters of the services; ``given`` is the number of messages that mpush gave to each lane, if any."""
    if given is not None:
        await write(redis, FAN.lists, **{lane.source: "out" for lane in lanes})
        for metric, total in (("taken", given), ("delivered", given * len(lanes))):
            await write(redis, FAN.metric(metric), count=total, **{lane.source: given for lane in lanes})
    for lane in lanes:
        keys, registered = lane.keys, len(lane.messages)
        await policy(redis, keys, source=lane.source, pending=f"t:{lane.name}:pending")
        await write(redis, keys.lists, **{lane.source: "in"})
        done = registered - len(lane.open) + sum(event == "done" for event, _ in lane.more)
        counts = {"events": registered * 2 - len(lane.open) + len(lane.more), "registered": registered, "done": done}
        for metric, count in counts.items():
            await write(redis, keys.metric(metric), count=count)
        if lane.open:
            await redis.zadd(keys.deadlines, {encoded(str(id)): 2e9 for id in lane.open})


def keep(url: str, place: Path, keys: str = "*:events") -> None:
    """Archive all events in Redis, as a pipeline would."""
    reader = RedisStream({"url": url, "keys": keys}).reader(StructType())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    events = pa.Table.from_batches(batches)
    for namespace in pc.unique(events["namespace"]).to_pylist():
        rows = events.filter(pc.equal(events["namespace"], namespace)).drop_columns(["namespace", "malformed"])
        columns = dict(zip(rows.column_names, rows.columns, strict=True))
        archive(place, namespace, columns)
