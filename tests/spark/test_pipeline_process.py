"""The pipeline as processes with Spark sessions of their own: killed at any moment, without Java, and in its demo."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.settings.fields import YEAR
from tests.spark import add_events
from tests.spark.pipelines import TIMEOUT_SECONDS, archived, events_in, table
from tests.support.demos import ROOT, environment
from tests.support.harness import Service, until

KILLS = int(os.environ.get("PENSTOCK_SPARK_ROUNDS", "1"))
"""Number of kills of the pipeline."""
Start = Callable[..., Service]


@pytest.fixture
def pipeline(redis_url: str, tmp_path: Path) -> Start:
    """Return a function that makes a pipeline with its archive in ``tmp_path``."""

    def made(**settings: object) -> Service:
        usual = {"redis": redis_url, "redis_namespace": "pipe", "watch": '["shop", "shop:*"]', "lease_expire": 2}
        return Service("pipeline", tmp_path / "log", **{**usual, "archive": tmp_path / "archive", **settings})

    return made


def test_killed_at_any_moment_nothing_is_lost_or_doubled_and_its_java_ends_with_it(
    shop: Any, pipeline: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end Java is killed: the reason names it and does not blame Redis."""
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    rng, total, runs = random.Random(), 6_000 * (KILLS + 1), [*range(KILLS + 1)]
    usual = dict.fromkeys(["keep_minutes", "keep_hours", "keep_days"], 10 * YEAR)
    usual |= {"merge_every": 1, "trigger": 0, "max_events": 1_000}

    def add_more() -> None:
        before = archived(shop)
        add_events(shop, 6_000, start=6_000 * runs.pop(0) + 1, each=rng.choice([10, 100]))
        until(lambda: archived(shop) > before, TIMEOUT_SECONDS, every=0.002)

    for _ in range(KILLS):
        # Without lateness, windows end at once and are computed again for each later event.
        with pipeline(lateness=rng.choice([0, 600]), **usual) as service:
            add_more()
            java = java_of(service)
            for victim in (worker_of(service), service.pid):
                until(lambda: rng.random() < 0.02, every=0.02)
                if victim:
                    os.kill(victim, signal.SIGKILL)
            service.wait()
        until(lambda java=java: not java.is_running())  # type: ignore[misc]
    with pipeline(lateness=0, **usual) as service:
        add_more()
        until(lambda: service.runs() and archived(shop) == total, TIMEOUT_SECONDS)
        until(lambda: service.runs() and final(tmp_path) == total, TIMEOUT_SECONDS)
        until(lambda: '"merged"' in service.log_text(), TIMEOUT_SECONDS)
        before = len(service.log_text())
        java_of(service).kill()
        assert service.wait(TIMEOUT_SECONDS) == 1
        lines = service.log_text()[before:].splitlines()
        last = "\n".join(line for line in lines if line.startswith("{"))  # py4j logs tracebacks of its own
        assert '"reason": "Spark\'s Java process was killed (SIGKILL): see the system\'s log' in last
        assert "refused" not in last
        assert "Exception occurred during processing" not in last
    assert Counter(int(row["id"]) for row in events_in(tmp_path)) == Counter(range(1, total + 1))
    published = Counter(row["id"] for row in table(tmp_path / "archive/events"))
    assert set(published.values()) == {1}, "any reader of the published events"
    micros = sum(id * 100_000 for id in range(1, total + 1))
    for window, size in (("2023-11-14T22:13", "minute"), ("2023-11-14T22", "hour"), ("2023-11-14", "day")):
        found = shop.hmget(f"shop:rollup:{window}", "count", "done:out:count", "done:out:sum", "done:out:max")
        assert [float(value) for value in found] == [total, total, micros / 1e6, total / 10]
        (row,) = table(tmp_path / f"archive/rollups/size={size}")
        assert (row["count"], row["micros"], row["max"]) == (total, micros, total / 10)


def java_of(service: Service) -> psutil.Process:
    """Check that its Java listens to this machine alone, and that no signal to our process group reaches it."""
    (java,) = [each for each in psutil.Process(service.pid).children(recursive=True) if "java" in each.name()]
    assert os.getpgid(java.pid) != os.getpgid(service.pid)
    listening = {each.laddr.ip for each in java.net_connections() if each.status == "LISTEN"}
    assert listening <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    return java


def worker_of(service: Service) -> int | None:
    """Return the pid of a process in which Spark runs Python, None if none runs."""
    for child in psutil.Process(service.pid).children(recursive=True):
        with suppress(psutil.Error):
            if "pyspark.daemon" in child.cmdline():
                return child.pid
    return None


def final(place: Path) -> int:
    """Return the number of events in the daily roll-up, 0 if it is not written yet."""
    with suppress(OSError):
        return sum(row["count"] for row in table(place / "archive/rollups/size=day"))
    return 0


def test_without_java_it_ends_and_says_what_to_install(pipeline: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pipeline() as service:
        assert service.wait(TIMEOUT_SECONDS) == 1
        said = "there is no Java (JAVA_HOME=/nowhere): install Java 17 or newer, or set JAVA_HOME"
        assert said in service.log_text()


def test_the_demo_archives_reports_and_accounts_for_every_message() -> None:
    sample = "from compose.tracked import demo, pipeline_demo; pipeline_demo.main(rows=demo.ROWS[::25])"
    words = [sys.executable, "-c", sample, "--json"]
    done = subprocess.run(
        words, env=environment(None), cwd=ROOT, capture_output=True, text=True, timeout=2 * TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stderr + done.stdout
    output = json.loads(done.stdout)
    assert (output["differences"], output["pushed"]) == ([], 351)
    # one branch: registered, done; the other: registered, three time-outs, two retries, dead
    assert output["events"]["told"] == output["events"]["archived"] >= 351 * 9
    assert list(output["commands"].values()) == [0, 0]
    assert "tracked:alert" in Path(output["report"]).read_text()
