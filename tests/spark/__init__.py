"""What tests of Spark need; they are skipped, with the reason, where there is no Java."""

import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.keys import Keys
from penstock.script import Script
from penstock.spark.session import what_is_missing
from tests.spark.standalone import SMALL

# For what tests start, too: drivers, and the commands of PySpark.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# Such a Java lives for seconds: to compile and to collect as for days costs it a fifth of them.
os.environ.setdefault("SPARK_SUBMIT_OPTS", SMALL)
MISSING: Final = what_is_missing()


def _marks(group: str) -> Any:
    return [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.xdist_group(group)]


pytestmark: Any = _marks("spark")
"""What a module whose tests use ``spark`` has as its own: one process runs them all, with one session."""
own_sessions: Any = _marks("sparks")
"""The same of one that starts processes, each with a session: beside the others, but one after the other."""


def schema_of(ddl: str) -> Any:
    """Spark must have been started: it alone can read a DDL."""
    from pyspark.sql.types import StructType

    return StructType.fromDDL(ddl)


SHOP = Keys("shop")
TELL = Script(
    "tell.lua",
    """-- Tell of messages that are done.
--
-- WITH events
-- ARGV history  most events to keep
-- ARGV from     the first id
-- ARGV many     how many
-- Returns nothing. Run twice: they are told twice.
for id = from, from + many - 1 do report('done', string.format('%d', id), 'x' .. id, 'out', '1', 1, id / 10) end
tell('1700000000123', tonumber(history))
""",
)


def tell(redis: Any, many: int, *, start: int = 1, each: int = 37, keys: Keys = SHOP, history: int = 10**6) -> None:
    """Events of the messages ``start`` and following, so many an entry."""
    for first in range(start, start + many, each):
        count = min(each, start + many - first)
        redis.execute_command(*TELL.by_source(**keys.event_keys, history=history, many=count, **{"from": first}))
