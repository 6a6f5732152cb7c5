"""The Spark session of all tests that share one."""

from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from penstock.spark.options import connect
from penstock.spark.session import session
from tests.spark import MISSING, SparkSession

NEED_NO_JAVA = ("test_masking", "test_report_page")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if MISSING and item.path.stem not in NEED_NO_JAVA:
        pytest.skip(MISSING)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    place = tmp_path_factory.mktemp("spark")
    made = session(
        spark_driver_host="127.0.0.1",
        spark_driver_bindAddress="127.0.0.1",
        spark_sql_warehouse_dir=str(place / "warehouse"),
        spark_local_dir=str(place / "local"),
        # With few rows, compiling a plan takes longer than interpreting it; tests with own sessions do compile.
        spark_sql_codegen_wholeStage="false",
        spark_sql_codegen_factoryMode="NO_CODEGEN",
        spark_sql_adaptive_enabled="false",
    )
    yield made
    made.stop()


@pytest.fixture
def here(redis_url: str) -> Iterator[Any]:
    """Return a client of the emptied server, as sources and sinks use it."""
    with connect(redis_url) as client:
        client.flushall()
        yield client


@pytest.fixture
def shop(redis_url: str) -> Iterator[Any]:
    """Return a plain client of the emptied server."""
    with Redis.from_url(redis_url) as client:
        client.flushall()
        yield client
