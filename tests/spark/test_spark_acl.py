"""PySpark programs as the user that ``penstock acl --spark`` prints."""

from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from tests.spark import (
    SHOP,
    SparkSession,
    add_events,
)
from tests.spark.queries import NAMES, started
from tests.support.commandline import penstock

KEYS = ("shop:events", "in", "numbers", "jobs", "out:*", "seen*")


@pytest.fixture
async def user(here: Any, redis_url: str) -> str:
    """Create that user and return its URL."""
    words = [word for key in KEYS for word in ("--spark", key)]
    (line,) = [each["line"] for each in (await penstock("acl", *words, "--json", redis=None)).json["users"]]
    here.execute_command(*[word.strip('"') for word in line.replace("PASSWORD", "pw").split()])
    here.execute_command("ACL", "LOG", "RESET")
    return redis_url.replace("redis://", "redis://pyspark:pw@")


def test_every_source_and_sink_works_as_that_user_who_is_refused_nothing(
    spark: "SparkSession", here: Any, user: str, tmp_path: Path
) -> None:
    add_events(here, 50, keys=SHOP)
    here.lpush("in", *map(str, range(50)))
    here.lpush("jobs", *map(str, range(50)))
    for number in range(50):
        here.xadd("numbers", {"n": number})
    for name in NAMES:
        query = started(spark, name, user, tmp_path, 20, ends=True)
        query.awaitTermination(120)
        assert query.exception() is None, query.exception()
    assert [here.llen("out:events"), here.llen("out:list"), here.xlen("out:stream")] == [50, 50, 50]
    assert here.hget("seen", "count") == b"50"
    options = {"url": user, "keys": "seen*"}
    assert spark.read.format("redis-hash").options(**options).load().count() == 51
    one = spark.createDataFrame([("seen:x", 1)], "key string, count long")
    one.write.format("redis-hash").options(url=user).mode("append").save()
    one.selectExpr("key value").write.format("redis-list").options(url=user, key="out:once").mode("append").save()
    assert spark.read.format("redis-list").options(url=user, key="out:once").load().count() == 1
    refused = [each["object"] for each in here.acl_log() if "setinfo" not in each["object"]]
    assert refused == []
    with pytest.raises(NoPermissionError):
        type(here).from_url(user).lpush("elsewhere", "x")
