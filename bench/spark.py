"""What the benchmarks of Spark's sources and sinks share."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bench.figures import Figure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def spark_session() -> "Iterator[SparkSession]":
    from penstock.spark.session import session

    spark = session("local[2]", "2g")
    try:
        yield spark
    finally:
        spark.stop()


def into_nothing(rows: "DataFrame") -> float:
    """Read all ``rows``; return the seconds that it took."""
    return seconds(lambda: rows.write.format("noop").mode("overwrite").save())


def seconds(work: Any) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def against_bare(name: str, count: int, turns: Sequence[tuple[float, float]], limit: float) -> Figure:
    """Return the figure of ``turns``, the seconds of a bare process and of Spark for ``count`` rows."""
    bare, ours = (f"{count / statistics.median(column) / 1000:,.0f} k/s" for column in zip(*turns, strict=True))
    return Figure(name, "x", [one / two for one, two in turns], limit, at_least=True, note=f"{ours} against {bare}")
