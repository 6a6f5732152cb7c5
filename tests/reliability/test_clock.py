"""Tests on a host with a wrong clock: all times are the server's."""

from pathlib import Path

from tests.reliability.fleet import Fleet, assert_accounted, assert_registry_clean
from tests.support.clock import Skewed
from tests.support.harness import until

MESSAGES = [b"message %d" % number for number in range(100)]


def test_replicas_whose_clocks_are_an_hour_fast_and_an_hour_slow_work_as_any(fleet: Fleet, tmp_path: Path) -> None:
    began = fleet.redis.time()[0]
    settings = fleet.service.settings() | {"service_expire": 30, "service_renew": 5, "ordered": True}
    names = {"redis": fleet.url, "redis_namespace": fleet.keys.namespace}
    with (
        Skewed(fleet.service.name, tmp_path / "fast.log", 3600, **settings, **names) as fast,
        Skewed(fleet.service.name, tmp_path / "slow.log", -3600, **settings, **names) as slow,
    ):
        until(lambda: len(fleet.ids()) == 2)
        assert abs(fast.clock() - 3600 - began) < 60
        assert abs(slow.clock() + 3600 - began) < 60
        until(lambda: all(times(fleet, id)["renewed"] > times(fleet, id)["started"] for id in fleet.ids()))
        for id in fleet.ids():
            assert 20 <= fleet.redis.ttl(fleet.keys.instance(id)) <= 30
            assert began <= times(fleet, id)["started"] <= times(fleet, id)["renewed"] <= fleet.redis.time()[0]
        assert fleet.redis.zcount(fleet.keys.owners, began, fleet.redis.time()[0]) == 2
        first, second = (fast, slow) if "active" in fast.log_text() else (slow, fast)
        fleet.push(MESSAGES[:50])
        fleet.wait_until_settled()
        assert "active" not in second.log_text()
        assert first.stop() == 0
        fleet.push(MESSAGES[50:])
        fleet.wait_until_settled()
        assert second.stop() == 0
    assert_accounted(fleet, MESSAGES)
    assert_registry_clean(fleet)


def times(fleet: Fleet, id: str) -> dict[str, int]:
    started, renewed = fleet.redis.hmget(fleet.keys.instance(id), "started", "renewed")
    return {"started": int(started), "renewed": int(renewed)}
