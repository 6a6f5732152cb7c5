"""mbalance as a process, with workers that come, die and differ."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from redis import Redis

from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer
from services.mbalance.settings import Settings
from tests.support.commandline import penstock
from tests.support.harness import Service, until

OUTS = ("one", "two", "three")
KEYS = Keys("demo")
LISTS: dict[str, Any] = {"redis_namespace": "demo", "in": "in", "pending": "pending", "out": list(OUTS)}
REGISTRATIONS = [f"{name}:worker" for name in OUTS]


class Worker(threading.Thread):
    """Worker of one list: take one message at a time to a list of its own, wait ``seconds``, note it, and remove it."""

    def __init__(self, url: str, name: str, seconds: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._redis: Any = Redis.from_url(url)
        self._name, self._seconds = name, seconds
        self._over = threading.Event()
        self.seen: list[bytes] = []

    def run(self) -> None:
        hand = f"{self._name}:hand"
        while not self._over.is_set():
            self._redis.set(f"{self._name}:worker", 1, ex=60)
            message = self._redis.blmove(self._name, hand, 0.1, "RIGHT", "LEFT")
            if message is not None:
                self._over.wait(self._seconds)
                self.seen.append(message)
                self._redis.lrem(hand, 1, message)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(30)
        self._redis.delete(f"{self._name}:worker")
        self._redis.close()


@pytest.fixture
def balancer(server: EmbeddedServer, here: Any, tmp_path: Path) -> Iterator[Any]:
    """Yield a function that starts one more instance and waits until it is registered."""
    with ExitStack() as ends:

        def start(**settings: Any) -> Service:
            before = here.llen(KEYS.ids)
            log = tmp_path / f"{len([*tmp_path.iterdir()])}.log"
            service = ends.enter_context(Service("mbalance", log, redis=server.url, **{**LISTS, **settings}))
            until(lambda: here.llen(KEYS.ids) > before)
            return service

        yield start


def held(redis: Any) -> dict[str, list[bytes]]:
    return {name: redis.lrange(name, 0, -1)[::-1] for name in OUTS}


@contextmanager
def working(url: str, **seconds: float) -> Iterator[dict[str, Worker]]:
    with ExitStack() as ends:
        yield {name: ends.enter_context(Worker(url, name, each)) for name, each in seconds.items()}


async def test_audit_and_status_show_the_lists(balancer: Any, here: Any, redis_url: str) -> None:
    balancer()
    here.lpush("in", *range(30))
    until(lambda: here.llen("three") == 10)
    audited = await penstock("audit", "demo", redis=redis_url)
    assert "conserved: 30 messages settled, 0 pending" in audited.text
    shown = await penstock("status", "demo", "--json", redis=redis_url)
    assert {entry["name"]: entry["length"] for entry in shown.json["lists"] if entry["role"] == "out"} == dict.fromkeys(
        OUTS, 10
    )


def test_messages_wait_until_a_worker_is_there(balancer: Any, here: Any) -> None:
    service = balancer(registrations=REGISTRATIONS)
    here.lpush("in", *range(10))
    until(lambda: "no list has a live worker" in service.log_text())
    assert sum(here.llen(name) for name in OUTS) == 0
    assert service.stop() == 0  # one message may be in its pending list
    service = balancer(registrations=REGISTRATIONS)
    until(lambda: "no list has a live worker" in service.log_text())
    here.set("two:worker", 1)
    until(lambda: here.llen("two") == 10)
    assert held(here)["two"] == [b"%d" % number for number in range(10)]
    assert "resumed" in service.log_text()


def test_a_fast_worker_gets_more_than_a_slow_one(balancer: Any, here: Any, redis_url: str) -> None:
    balancer(registrations=REGISTRATIONS, in_hand=[f"{name}:hand" for name in OUTS])
    with working(redis_url, one=0.002, two=0.002, three=0.04) as workers:
        until(lambda: all(here.exists(name) for name in REGISTRATIONS))
        for number in range(600):
            here.lpush("in", number)
            time.sleep(0.002)  # the arrivals of a load, not a wait
        until(lambda: sum(len(worker.seen) for worker in workers.values()) == 600)
    counts = {name: len(worker.seen) for name, worker in workers.items()}
    assert counts["three"] < 0.5 * min(counts["one"], counts["two"]), counts


def test_two_balancers_share_the_measured_rates(balancer: Any, here: Any) -> None:
    seconds, _ = here.time()
    here.hset(
        KEYS.rates,
        mapping={name: f"{each} 20 {seconds} {seconds} 0 0 0" for name, each in zip(OUTS, (1, 1, 4), strict=True)},
    )
    balancer(rate_expire=86_400)
    balancer(rate_expire=86_400)
    for _ in range(90):
        here.lpush("in", *range(10))
    until(lambda: sum(here.llen(name) for name in OUTS) == 900)
    assert [here.llen(name) for name in OUTS] == pytest.approx([400, 400, 100], abs=20)


def test_it_works_with_the_rights_that_its_settings_ask_for_and_is_refused_nothing(
    here: Any, server: EmbeddedServer, tmp_path: Path
) -> None:
    settings = {**LISTS, "workers": ["wa", "wb", "wc"], "in_hand": ["ha", "hb", "hc"]}
    url = f"redis://balancer:pw@127.0.0.1:{server.port}/0"
    named = {"in_" if name == "in" else name: value for name, value in settings.items()}
    ((_, rights),) = Settings(redis=url, **named).rights().items()
    here.execute_command(*rights.line("balancer", "pw").replace('"', "").split())
    here.execute_command("ACL", "LOG", "RESET")
    try:
        for space in ("wa", "wb", "wc"):
            here.hset(f"{space}:1", "host", "any")
            here.lpush(f"{space}:ids", 1)
        with Service("mbalance", tmp_path / "log", redis=url, **settings) as service:
            here.lpush("in", *range(30))
            until(lambda: [here.llen(name) for name in OUTS] == [10, 10, 10])
            here.delete("wb:1")
            until(lambda: [here.llen(name) for name in OUTS] == [15, 0, 15])
            assert service.stop() == 0
        assert [each for each in here.acl_log() if "setinfo" not in each["object"]] == []
    finally:
        here.acl_deluser("balancer")


async def test_lint_and_map_show_it(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("balance: python -m services.mbalance --props mbalance.yaml\n")
    (tmp_path / "mbalance.yaml").write_text(
        "redis: redis://h\nredisNamespace: demo\nin: in\npending: pending\nout: [one, two]\npolicy: weighted\n"
    )
    (tmp_path / "composition.yaml").write_text("external: {writes: [in], reads: [one, two]}\n")
    refused = await penstock("lint", tmp_path, redis=None)
    assert "mbalance.yaml:6: policy: weighted needs weights, one for each list of out" in refused.text
    (tmp_path / "mbalance.yaml").write_text(
        "redis: redis://h\nredisNamespace: demo\nin: in\npending: pending\nout: [one, two]\n"
    )
    assert (await penstock("lint", tmp_path, redis=None)).text.count("OK") == 1
    shown = (await penstock("map", tmp_path, redis=None)).text
    for words in ("balance (mbalance)", "one  to others", "two  to others"):
        assert words in shown
