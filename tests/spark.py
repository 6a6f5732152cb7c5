"""One Spark for all tests that need it, on this machine; they are skipped, with the reason, where there is no Java."""

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

from penstock.keys import Keys
from penstock.lua import Script
from penstock.spark.session import session, what_is_missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for drivers that tests start, too
MISSING: Final = what_is_missing()
pytestmark: Any = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.xdist_group("spark"),
]
"""What every module of Spark's tests has as its own: one process runs them all, with one session."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    place = tmp_path_factory.mktemp("spark")
    made = session(
        spark_driver_host="127.0.0.1",
        spark_driver_bindAddress="127.0.0.1",
        spark_sql_warehouse_dir=str(place / "warehouse"),
        spark_local_dir=str(place / "local"),
    )
    yield made
    made.stop()


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
        redis.execute_command(*TELL.by_source(**keys.telling, history=history, many=count, **{"from": first}))
