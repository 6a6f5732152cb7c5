"""penstock reconcile: text, JSON, and a message taken by hand from a list of real services."""

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redis import Redis as Blocking
from redis.asyncio import Redis

from penstock.cli._frame import Failed
from penstock.cli.reconcile import run_reconcile
from tests.spark import SparkSession
from tests.spark.archives import Lane, archive, counters, keep
from tests.support.commandline import ended, running
from tests.support.harness import Service, until


@pytest.fixture
def reconcile(spark: "SparkSession", redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs reconcile and returns exit status, stdout and stderr."""

    async def run(*namespaces: str, live: bool = False, as_json: bool = False) -> tuple[int, str, str]:
        status = await run_reconcile(
            str(tmp_path),
            list(namespaces),
            lambda: nullcontext(spark),
            redis_url,
            live=live,
            as_json=as_json,
            patience=0.0,
        )
        return status, *capsys.readouterr()

    return run


def rows(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]


async def test_a_million_events_agree(redis: Redis, reconcile: Any, tmp_path: Path) -> None:
    lanes = [Lane(name, np.arange(250_000)) for name in ("left", "right")]
    await counters(redis, *lanes, given=250_000)
    for lane in lanes:
        archive(tmp_path, lane.keys.namespace, lane.columns())
    status, out, err = await reconcile()
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "reconciled: 500,000 messages by 1,000,000 events, all accounted for"
    assert rows(out) == [
        ["t:mpush -> t:left:in -> t:left", "250,000", "250,000", *["0"] * 7],
        ["t:mpush -> t:right:in -> t:right", "250,000", "250,000", *["0"] * 7],
    ]


async def test_problems_are_one_line_each_and_complete_in_json(redis: Redis, reconcile: Any, tmp_path: Path) -> None:
    right, left = Lane("right", np.arange(1_000), open=range(1, 13)), Lane("left", np.arange(120, 1_000))
    await counters(redis, right, left, given=1_000)
    for lane in (right, left):
        archive(tmp_path, lane.keys.namespace, lane.columns())
    status, out, err = await reconcile()
    assert status == 1
    lines = err.splitlines()
    assert lines[0] == "penstock: t:mpush -> t:left:in -> t:left: xid x0: missing; registered as 1 in t:right"
    assert (len(lines), lines[-1]) == (101, "penstock: and 20 more: --json has all")
    assert "under way: 12, the oldest first" in out
    assert "  id 1 (xid x0) in out of t:right: registered 2026-01-01 00:00:00 UTC" in out
    assert "  and 2 more: --json has all" in out
    assert rows(out)[0][-2:] == ["120", "0"]
    assert "reconciled" not in out
    status, out, err = await reconcile(as_json=True)
    found = json.loads(out)
    assert (status, err, found["holds"], len(found["findings"]), len(found["open"])) == (1, "", False, 120, 12)
    assert found["findings"][0] == {
        "kind": "missing",
        "where": "t:mpush -> t:left:in -> t:left",
        "words": "missing; registered as 1 in t:right",
        "namespace": "",
        "id": "",
        "xid": "x0",
    }
    assert found["legs"][0]["hop"] == "t:mpush -> t:left:in -> t:left"
    assert (found["legs"][0]["accepted"], found["legs"][0]["missing"]) == (1_000, 120)


async def test_a_server_that_tracks_nothing_is_the_wrong_one(redis: Redis, reconcile: Any, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    with pytest.raises(Failed, match="no mdispatch has registered on this server: name another"):
        await reconcile()


async def test_usage_errors_are_reported_before_spark_starts(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    await counters(redis, Lane("left", np.arange(3)))
    for words, status, wrong in (
        ((), 2, "Missing option '--archive'"),
        (("--archive", str(tmp_path), "t:nobody"), 1, "no service has registered in the namespace t:nobody"),
        (("--archive", str(tmp_path), "--redis", "nowhere"), 2, "'nowhere' is not the URL of a server"),
    ):
        async with running("reconcile", *words, redis=redis_url) as process:
            found, err = await ended(process)
            assert (found, wrong in err) == (status, True), err


async def test_a_message_popped_from_a_branch_of_real_services_is_named(
    redis: Redis, redis_url: str, reconcile: Any, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    lists: dict[str, Any] = {"in_": "t:in", "pending": "t:pending", "out": ["t:left:in", "t:right:in"]}
    fan = Service("mpush", logs / "mpush", redis=redis_url, redis_namespace="t:mpush", **lists)
    watched: dict[str, Any] = {"watch": ["t:left", "t:right"], "metrics_port": 0}
    watch = Service("monitor", logs / "monitor", redis=redis_url, redis_namespace="t:watch", **watched)

    def hop(name: str) -> Service:
        lists = {role: f"t:{name}:{role.strip('_')}" for role in ("in_", "pending", "out")}
        return Service("mdispatch", logs / name, redis=redis_url, redis_namespace=f"t:{name}", **lists)

    with Blocking.from_url(redis_url) as server, fan, watch, hop("left") as left, hop("right"):

        def counted(namespace: str, metric: str) -> int:
            return int(server.hget(f"{namespace}:metrics:{metric}", "count") or 0)

        server.lpush("t:in", *range(100))
        until(lambda: counted("t:left", "registered") == counted("t:right", "registered") == 100)
        assert left.stop() == 0
        server.lpush("t:in", *range(100, 200))
        until(lambda: counted("t:right", "registered") == 200)
        assert server.rpop("t:left:in") == b"100"
        with hop("left"):
            until(lambda: counted("t:left", "registered") == 199)
            server.lpush("t:left:done", *(json.dumps({"xid": f"{number}"}) for number in range(90)))
            server.lpush("t:right:done", *(json.dumps({"xid": f"{number}"}) for number in range(200)))
            until(lambda: (counted("t:left", "done"), counted("t:right", "done")) == (90, 200))
            keep(redis_url, tmp_path)
            status, out, err = await reconcile(live=True)
    hop_and_name = r"penstock: t:mpush -> t:left:in -> t:left: xid 100: missing; registered as \d+ in t:right\n"
    assert re.fullmatch(hop_and_name, err)
    assert status == 1
    assert rows(out) == [
        ["t:mpush -> t:left:in -> t:left", "200", "90", "0", "0", "0", "109", "0", "1", "0"],
        ["t:mpush -> t:right:in -> t:right", "200", "200", *["0"] * 7],
    ]
