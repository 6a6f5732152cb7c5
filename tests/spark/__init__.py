"""Helpers for tests of Spark, which are skipped without Java."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.base.keys import Keys
from penstock.core.script import Script
from penstock.spark.session import what_is_missing
from tests.spark.standalone import SMALL

# Inherited by drivers and by commands of PySpark that tests start.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# The second-stage compiler takes a fifth of the time of a Java that lives for seconds.
os.environ.setdefault("SPARK_SUBMIT_OPTS", SMALL)
MISSING: Final = what_is_missing()
if TYPE_CHECKING:
    from pyspark.sql import DataFrame as DataFrame
    from pyspark.sql import SparkSession as SparkSession
else:  # PySpark may be missing, and takes long to import
    DataFrame = SparkSession = Any


def schema_of(ddl: str) -> Any:
    """Return the schema of ``ddl``; parsing needs a running Spark."""
    from pyspark.sql.types import StructType

    return StructType.fromDDL(ddl)


SHOP = Keys("shop")
ADD_EVENTS = Script(
    "add_events.lua",
    """-- Write an event `done` for each of some messages.
--
-- WITH events: report write_events
-- ARGV history  most events to keep
-- ARGV from     the first id
-- ARGV many     how many
-- Returns nothing. Run twice: the second run writes them again.
for id = from, from + many - 1 do report('done', string.format('%d', id), 'x' .. id, 'out', '1', 1, id / 10) end
write_events('1700000000123', tonumber(history))
""",
)


def add_events(
    redis: Any, many: int, *, start: int = 1, each: int = 37, keys: Keys = SHOP, history: int = 10**6
) -> None:
    """Write events of ``many`` messages, from id ``start`` on, with ``each`` events per entry."""
    for first in range(start, start + many, each):
        count = min(each, start + many - first)
        redis.execute_command(*ADD_EVENTS.by_source(**keys.event_keys, history=history, many=count, **{"from": first}))
