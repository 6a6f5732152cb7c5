"""Consumer of the group statistics, which ``services/worker`` runs: ``app: compose.jobs.figures:consumer``.

The variables: FIGURES_WORK_SECONDS is how long it pretends to work on a job, FIGURES_SLOW_SECONDS how long on its first
one, FIGURES_CLAIM_AFTER after how long another process takes a job whose process has died, and FIGURES_CONCURRENCY.
"""

import asyncio
import os
import time
from statistics import fmean
from typing import Any, Final

from compose.jobs.names import MONTHS, OUT, STATISTICS, TALLY, claim_after, seconds, url, worker
from penstock.connection import connect
from penstock.jobs import Attempt, Backoff, Consumer, Limit

HOT: Final = 33.0
"""A month with a day of at least this (C) fails in its first attempt."""
_first = [seconds("FIGURES_SLOW_SECONDS", 0)]
"""Seconds for the first job, until that has begun."""

consumer: Final = Consumer(
    STATISTICS,
    concurrency=int(os.environ.get("FIGURES_CONCURRENCY", 2)),
    backoff=Backoff([0.2]),
    claim_after=claim_after(),
)


class LookTwice(Exception):
    """A month is hot."""


@consumer.job(MONTHS, values=["rows"], result=STATISTICS, limit=Limit(concurrency=1, by_key=True))
async def statistics(job: Attempt) -> dict[str, Any]:
    """Return mean and maximum (C) of the warmest of each day, and how many days had rain."""
    begun = time.time()
    await job.progress({"by": worker()})
    await asyncio.sleep(_first.pop() if _first and _first[0] else seconds("FIGURES_WORK_SECONDS", 0))
    rows = [row.split(",") for row in (job.values["rows"] or b"").decode().split()]
    if not rows:
        raise ValueError(f"no rows of {job.id}")
    warmest = [float(row[2]) for row in rows]
    if max(warmest) >= HOT and job.number == 1:
        raise LookTwice(f"{job.id} is hot: look twice")
    return {
        "days": len(rows), "mean": round(fmean(warmest), 2), "max": max(warmest),
        "rainy": sum(float(row[1]) > 0 for row in rows), "worker": worker(), "from": begun, "until": time.time(),
    }  # fmt: skip


@consumer.job(TALLY, result=TALLY)
async def tally(job: Attempt) -> int:
    """Return how many months are through."""
    async with connect(url()) as redis:
        return int(await redis.llen(OUT))
