"""A host whose clock is wrong: all times are the server's."""

import json
from datetime import datetime
from pathlib import Path

from tests.harness import ROOT, Service, until
from tests.reliability.stage import Stage, assert_accounted, assert_registry_clean

MESSAGES = [b"message %d" % number for number in range(100)]


class Skewed(Service):
    """A service on a host whose clock is ``skew`` seconds off."""

    def __init__(self, name: str, log: Path, skew: int, **settings: object) -> None:
        super().__init__(name, log, **settings)
        path = f"{Path(__file__).parent / 'skewed'}:{ROOT}"
        self._environment |= {"PYTHONPATH": path, "CLOCK_SKEW": str(skew)}

    def clock(self) -> float:
        """What its clock showed when it spoke first (s since the epoch)."""
        return datetime.fromisoformat(json.loads(self.said().splitlines()[0])["timestamp"]).timestamp()


def test_replicas_whose_clocks_are_an_hour_fast_and_an_hour_slow_work_as_any(stage: Stage, tmp_path: Path) -> None:
    began = stage.redis.time()[0]
    settings = stage.service.settings() | {"service_expire": 30, "service_renew": 5, "ordered": True}
    names = {"redis": stage.url, "redis_namespace": stage.keys.namespace}
    with (
        Skewed(stage.service.name, tmp_path / "fast.log", 3600, **settings, **names) as fast,
        Skewed(stage.service.name, tmp_path / "slow.log", -3600, **settings, **names) as slow,
    ):
        until(lambda: len(stage.ids()) == 2)
        assert abs(fast.clock() - 3600 - began) < 60
        assert abs(slow.clock() + 3600 - began) < 60
        until(lambda: all(times(stage, id)["renewed"] > times(stage, id)["started"] for id in stage.ids()))
        for id in stage.ids():
            assert 20 <= stage.redis.ttl(stage.keys.instance(id)) <= 30
            assert began <= times(stage, id)["started"] <= times(stage, id)["renewed"] <= stage.redis.time()[0]
        assert stage.redis.zcount(stage.keys.owners, began, stage.redis.time()[0]) == 2
        first, second = (fast, slow) if "active" in fast.said() else (slow, fast)
        stage.push(MESSAGES[:50])
        stage.wait_until_settled()
        assert "active" not in second.said()
        assert first.stop() == 0
        stage.push(MESSAGES[50:])
        stage.wait_until_settled()
        assert second.stop() == 0
    assert_accounted(stage, MESSAGES)
    assert_registry_clean(stage)


def times(stage: Stage, id: str) -> dict[str, int]:
    started, renewed = stage.redis.hmget(stage.keys.instance(id), "started", "renewed")
    return {"started": int(started), "renewed": int(renewed)}
