"""Reload of settings: applied or refused, and acknowledged; no message in hand is lost or duplicated."""

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis

from common.settings.base import ServiceSettings
from penstock.base.errors import SettingsError
from penstock.base.keys import Keys
from penstock.base.ports import free_port
from penstock.base.shape import property_of
from penstock.testing.server import EmbeddedServer
from services.mdispatch import settings as mdispatch
from services.monitor import settings as monitor
from services.pipeline import settings as pipeline
from services.vpush import settings as vpush
from tests.support.harness import Service, until

KEYS = Keys("demo")
ELSEWHERE: dict[str, Any] = {"redis": "redis://h", "redis_namespace": "a"}
LEAST: dict[str, dict[str, Any]] = {
    "mpush": {"in": "in", "pending": "pending", "out": ["a", "b"]},
    "mdispatch": {"in": "in", "pending": "pending", "out": "work"},
    "vpush": {"in": "in", "pending": "pending", "out": "there"},
    "monitor": {"watch": ["shop"], "metricsPort": 0},
}

VPUSH = vpush.Settings(**ELSEWHERE, in_="in", pending="pending", out_redis="redis://there", out="out")
PIPELINE = pipeline.Settings(**ELSEWHERE, watch=["shop"], archive="/nowhere")


class ReloadableService:
    """A service whose props file the test changes."""

    def __init__(self, name: str, directory: Path, redis: "Redis", url: str, **more: Any) -> None:
        self.redis: Any = redis
        self.props = directory / f"{name}.yaml"
        self.settings: dict[str, Any] = {"redis": url, "redisNamespace": KEYS.namespace, **LEAST[name], **more}
        self.write()
        self.service = Service(name, directory / "log")
        self.service._environment["PROPS_FILE"] = str(self.props)
        self.orders = 0

    def start(self) -> "ReloadableService":
        self.service.start()
        until(lambda: self.log("registered" if self.settings["redisNamespace"] else "settings"))
        return self

    def write(self, **changes: Any) -> None:
        self.settings |= changes
        self.props.write_text(yaml.safe_dump(self.settings))

    def log(self, event: str | None = None) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.service.log_text().splitlines() if line.startswith("{")]
        return [line for line in lines if event in (None, line["event"])]

    @property
    def key(self) -> str:
        (id,) = self.redis.lrange(KEYS.ids, 0, -1)
        return KEYS.instance(id.decode())

    def registration(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.redis.hgetall(self.key).items()}

    def count(self, metric: str, field: str = "count") -> int:
        return int(self.redis.hget(KEYS.metric(metric), field) or 0)

    def held(self, name: str) -> list[bytes]:
        """Return the messages of a list, oldest first."""
        found: list[bytes] = self.redis.lrange(name, 0, -1)
        return found[::-1]

    def let_it_take(self, pending: str, *messages: str) -> None:
        """Let the service take the first of ``messages`` and keep it in ``pending``: ``b`` is a string, not a list."""
        until(self.waits)
        self.redis.set("b", "no list")
        self.redis.lpush("in", *messages)
        until(lambda: self.redis.llen(pending))

    def waits(self) -> list[str]:
        """Return the ids of the connections that wait for a message."""
        return [client["id"] for client in self.redis.client_list() if client["flags"] == "b"]

    def order(self, **changes: Any) -> dict[str, str]:
        """Change the file and order a reload in the registration; return the registration once it has an answer."""
        self.write(**changes)
        return self.order_again()

    def order_again(self) -> dict[str, str]:
        """Order a reload of the unchanged file; return the registration once it has an answer."""
        self.orders += 1
        self.redis.hset(self.key, "reload", self.orders)
        until(lambda: self.registration().get("answered") == str(self.orders))
        return self.registration()

    def reload_by_signal(self, **changes: Any) -> None:
        """Change the file and order a reload by SIGHUP."""
        self.write(**changes)
        self.service.signal(signal.SIGHUP)


Start = Callable[..., ReloadableService]


@pytest.fixture
def start(server: EmbeddedServer, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a service, as in ``start("mpush", popTimeout=30)``, on the emptied shared server."""
    with ExitStack() as ends:
        redis = ends.enter_context(Redis(port=server.port))
        redis.flushall()

        def started(name: str, **more: Any) -> ReloadableService:
            directory = tmp_path / str(len(list(tmp_path.iterdir())))
            directory.mkdir()
            running = ReloadableService(name, directory, redis, server.url, **more)
            ends.callback(running.service.__exit__, None, None, None)
            return running.start()

        yield started


@contextmanager
def pushing(running: ReloadableService, source: str = "in") -> Iterator[list[bytes]]:
    """Push numbered messages while the block runs; yield the list of those pushed so far."""
    pushed: list[bytes] = []
    ended = threading.Event()

    def push() -> None:
        with Redis.from_url(running.settings["redis"]) as redis:
            while not ended.is_set():
                batch = [b"message %d" % number for number in range(len(pushed), len(pushed) + 50)]
                waiting: Any = redis.lpush(source, *batch)
                pushed.extend(batch)
                ended.wait(0.05 if waiting > 2_000 else 0.001)

    pusher = threading.Thread(target=push)
    pusher.start()
    try:
        yield pushed
    finally:
        ended.set()
        pusher.join()


def test_a_subscriber_is_added_by_the_registration_and_the_answer_can_be_read(start: Start) -> None:
    mpush = start("mpush")
    before = mpush.registration()
    answer = mpush.order(out=["a", "b", "c"])
    mpush.redis.lpush("in", "one")
    until(lambda: mpush.redis.llen("c"))
    assert answer | {"renewed": ""} == before | {"renewed": "", "reload": "1", "answered": "1", "reloaded": "1"}
    assert mpush.redis.hgetall(KEYS.lists)[b"c"] == b"out"
    assert (mpush.count("reload"), mpush.count("reload", "failed")) == (1, 0)
    until(lambda: mpush.log("reloaded"))
    (reloaded,) = mpush.log("reloaded")
    assert reloaded["changes"] == {"out": "['a', 'b'] -> ['a', 'b', 'c']"}
    assert len(mpush.log("registered")) == 1
    assert mpush.redis.hget(KEYS.metric("start"), "count") == b"1"
    assert mpush.service.stop() == 0
    assert not mpush.redis.exists(KEYS.owners, KEYS.holdings, KEYS.ids)


def test_a_signal_orders_the_same(start: Start) -> None:
    mpush = start("mpush")
    for number in (1, 2):
        mpush.reload_by_signal(out=["a", f"c{number}"])
        until(lambda number=number: mpush.registration().get("reloaded") == f"SIGHUP {number}")  # type: ignore[misc]
    assert mpush.count("reload") == 2
    assert mpush.redis.hgetall(KEYS.lists).keys() == {b"in", b"pending", b"a", b"c2"}


def test_a_service_without_a_namespace_obeys_the_signal(start: Start) -> None:
    mpush = start("mpush", redisNamespace=None)
    mpush.reload_by_signal(out=["c"])
    until(lambda: mpush.log("reloaded"))
    mpush.redis.lpush("in", "one")
    until(lambda: mpush.redis.llen("c"))
    mpush.reload_by_signal(pending="another")
    until(lambda: mpush.log("reload refused"))
    assert mpush.redis.keys() == [b"c"]
    assert mpush.service.stop() == 0


def test_each_message_arrives_once_in_every_list_that_was_an_out_at_its_move(start: Start) -> None:
    """Change ``out`` under load (RV-32)."""
    mpush = start("mpush", batch=7)
    outs = ["ab", *["bc", "ac", "c", "abcd"] * 3]
    with pushing(mpush) as pushed:
        for each in outs[1:]:
            taken = mpush.count("taken")
            until(lambda taken=taken: mpush.count("taken") > taken)  # type: ignore[misc]
            mpush.order(out=[*each])
    until(lambda: mpush.count("settled") == len(pushed))
    held = {out: mpush.held(out) for out in "abcd"}
    members = {out: set(messages) for out, messages in held.items()}
    for out, messages in held.items():
        assert messages == [message for message in pushed if message in members[out]], out
    got = ["".join(out for out in "abcd" if message in members[out]) for message in pushed]
    assert [each for each, _ in groupby(got)] == outs
    assert mpush.count("reload") == len(outs) - 1
    assert mpush.service.stop() == 0


def test_invalid_settings_change_nothing_and_every_problem_is_reported(start: Start) -> None:
    """Break the file: the old settings stay in force (RV-32)."""
    mpush = start("mpush", popTimeout=30)
    until(mpush.waits)
    waits = mpush.waits()
    answer = mpush.order(out=["in"], batch=0)
    assert answer["refused"].splitlines() == [
        f"{mpush.props}:1: batch: expected a whole number of messages from 1 to 100000, found 0",
        f'{mpush.props}:3: out: "in" is `in` as well: its messages would go round for ever',
    ]
    assert "reloaded" not in answer
    assert [line["problem"] for line in mpush.log("reload refused")] == answer["refused"].splitlines()
    assert (mpush.count("reload"), mpush.count("reload", "failed")) == (0, 1)
    mpush.props.write_text("in: [")
    assert "yaml:1" in mpush.order_again()["refused"]
    mpush.props.unlink()
    assert "cannot be read" in mpush.order_again()["refused"]
    assert mpush.waits() == waits
    mpush.redis.lpush("in", "one")
    until(lambda: mpush.redis.llen("a") == mpush.redis.llen("b") == 1)
    answer = mpush.order(out=["a"], batch=1)
    assert "refused" not in answer
    assert answer["reloaded"] == answer["reload"]


def test_an_order_that_changes_nothing_is_answered_and_disturbs_nothing(start: Start) -> None:
    mpush = start("mpush", popTimeout=30)
    until(mpush.waits)
    waits = mpush.waits()
    assert mpush.order()["reloaded"] == "1"
    assert mpush.waits() == waits
    assert mpush.count("reload") == 1
    until(lambda: mpush.log("reloaded"))
    assert mpush.log("reloaded")[0]["changes"] == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("redis", "redis://127.0.0.1:1"), ("serviceRedis", "redis://h"), ("redisNamespace", "b"), ("ordered", True)],
)
def test_changes_that_need_a_restart_are_named_and_none_is_applied(start: Start, name: str, value: Any) -> None:
    mpush = start("mpush")
    answer = mpush.order(**{name: value, "out": ["c"]})
    line = 1 + mpush.props.read_text().splitlines().index(yaml.safe_dump({name: value}).strip())
    assert answer["refused"] == f"{mpush.props}:{line}: {name}: cannot change while the service runs: restart it"
    mpush.redis.lpush("in", "one")
    until(lambda: mpush.redis.llen("a") == mpush.redis.llen("b") == 1)
    assert not mpush.redis.exists("c")


@pytest.mark.parametrize(("settings", "changes"), [
    (VPUSH, {"out": "b"}), (VPUSH, {"out_redis": "redis://other"}), (VPUSH, {"compression": "zstd"}),
    (VPUSH, {"unpack": True}), (VPUSH, {"max_hops": 3}), (PIPELINE, {"watch": ["b"]}), (PIPELINE, {"memory": "2g"}),
])  # fmt: skip
def test_settings_of_a_service_that_need_a_restart(settings: ServiceSettings, changes: dict[str, Any]) -> None:
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    with pytest.raises(SettingsError, match=f"^{property_of(*changes)}: cannot change while the service runs"):
        type(settings)(**given | changes).changes_from(settings)


def test_messages_taken_for_one_role_are_given_to_no_other() -> None:
    watching = monitor.Settings(redis="redis://h", redis_namespace="m", watch=["yard", "new"])
    assert watching.adopts(["m:pending:shop", "m:pending:yard"]) == {"m:pending:yard": "m:pending:yard"}
    tracked = mdispatch.Settings(redis="redis://h", redis_namespace="d", in_="in", pending="new", out="out", res="res")
    assert tracked.adopts(["old:answers"]) == {"old:answers": "new"}
    assert tracked.adopts(["old", "old:answers"]) == {"old": "new", "old:answers": "new:answers"}
    untracked = mdispatch.Settings(redis="redis://h", redis_namespace="d", in_="in", pending="new", out="out")
    assert untracked.adopts(["old", "old:answers"]) == {"old": "new"}


def test_passwords_are_masked_in_reports_of_a_change(start: Start) -> None:
    mpush = start("mpush")
    assert "secret" not in mpush.order(serviceRedis="redis://u:secret@h", outs="redis://u:secret@h")["refused"]
    assert "secret" not in mpush.service.log_text()


def test_the_old_settings_stay_if_the_server_cannot_support_the_new(start: Start) -> None:
    mpush = start("mpush")
    assert "durability aof needs" in mpush.order(durability="aof", out=["c"])["refused"]
    mpush.redis.lpush("in", "one")
    until(lambda: mpush.redis.llen("a"))


def test_the_level_of_the_log_changes(start: Start) -> None:
    mpush = start("mpush")
    for level in ("error", "info", "debug"):
        mpush.order(loggerLevel=level)
    until(lambda: [line["order"] for line in mpush.log("reloaded")] == ["2", "3"])


def test_messages_in_pending_lists_of_the_old_name_are_delivered_first_in_order(start: Start) -> None:
    mpush = start("mpush")
    redis = mpush.redis
    mpush.let_it_take("pending:1", "mine", "waits")
    for id in (-8, -7):
        redis.zadd(KEYS.owners, {id: redis.time()[0]})
    redis.hset(KEYS.holdings, mapping={"-7": json.dumps([["older"], ["oldest"]]), "-6": "[1]", "-5": "[" * 100_000})
    for place, name in enumerate(("oldest:-7", "older:-7", "pending:-8")):
        redis.lpush(name, f"dead {place}", f"dead {place} later")
    mpush.order(pending="another")
    assert redis.hgetall(KEYS.lists)[b"another"] == b"pending"
    assert (redis.exists("pending:1", "older:-7", "oldest:-7", "pending:-8"), redis.llen("another:1")) == (0, 7)
    redis.delete("b")
    until(lambda: redis.llen("b") == 8)
    assert mpush.held("a") == mpush.held("b")
    assert mpush.held("a")[-2:] == [b"mine", b"waits"]
    assert json.loads(redis.hget(KEYS.holdings, "1")) == [["another"], ["pending"]]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_message_of_a_killed_instance_is_found_after_pending_was_renamed(start: Start, ordered: bool) -> None:
    first = start("mpush", ordered=ordered, leaseExpire=2)
    first.let_it_take("pending" if ordered else "pending:1", "one")
    first.service.kill()
    first.redis.delete("b", KEYS.instance("1"))
    first.redis.lpush("in", "two")
    second = start("mpush", pending="another", ordered=ordered, leaseExpire=2)
    until(lambda: second.held("a") == second.held("b") == [b"one", b"two"])
    assert second.service.stop() == 0


def test_a_lost_wait_that_ends_after_a_rename_loses_nothing(start: Start) -> None:
    """Simulate a lost connection that the server has not noticed: a late BLMOVE goes to the pending list's old name."""
    mpush = start("mpush", serviceRenew=5)
    mpush.order(pending="another")
    mpush.redis.lpush("pending:1", "late")
    until(lambda: mpush.held("a") == mpush.held("b") == [b"late"])


def test_the_list_that_is_read_changes(start: Start) -> None:
    mpush = start("mpush", popTimeout=30)
    until(mpush.waits)
    mpush.order(**{"in": "new"})
    mpush.redis.lpush("in", "stays")
    mpush.redis.lpush("new", "goes")
    until(lambda: mpush.held("a") == [b"goes"])
    assert mpush.held("in") == [b"stays"]


def test_a_late_order_does_not_restore_a_registration(start: Start) -> None:
    mpush = start("mpush", popTimeout=30, serviceExpire=600, serviceRenew=500)
    until(mpush.waits)
    key = mpush.key
    with mpush.redis.pipeline(transaction=True) as transaction:
        transaction.delete(key)
        transaction.hset(key, "reload", 1)
        transaction.execute()
    assert mpush.service.wait() == 0
    assert not mpush.redis.exists(key, KEYS.ids)


def test_an_order_to_the_dead_does_not_keep_their_messages(start: Start) -> None:
    first = start("mpush")
    first.let_it_take("pending:1", "one")
    first.service.kill()
    first.redis.delete("b", KEYS.instance("1"))
    first.redis.hset(KEYS.instance("1"), "reload", 1)
    second = start("mpush")
    until(lambda: second.held("b") == [b"one"])
    assert second.redis.lrange(KEYS.ids, 0, -1) == [b"2"]


def test_an_order_that_comes_while_the_server_is_away_is_obeyed_when_it_is_back(tmp_path: Path) -> None:
    with EmbeddedServer(aof=True) as server, Redis(port=server.port) as redis:
        mpush = ReloadableService("mpush", tmp_path, redis, server.url)
        with mpush.service:
            until(lambda: mpush.log("registered"))
            server.stop()
            until(lambda: mpush.log("waiting"))
            mpush.reload_by_signal(out=["c"])
            server.start()
            until(lambda: mpush.log("reloaded"))
            redis.lpush("in", "one")
            until(lambda: redis.llen("c"))
            assert mpush.service.stop() == 0


def test_active_and_standby_reload_and_the_lease_stays_where_it_is(start: Start) -> None:
    active = start("mpush", ordered=True, leaseExpire=3_600)
    until(lambda: active.log("active"))
    standby = start("mpush", ordered=True, leaseExpire=3_600)
    lease = active.redis.hgetall(KEYS.lease)
    for running in (standby, active):
        running.reload_by_signal(pending="another", out=["c"])
        until(lambda running=running: running.log("reloaded"))  # type: ignore[misc]
    active.redis.lpush("in", "one")
    until(lambda: active.held("c") == [b"one"])
    assert active.redis.hmget(KEYS.lease, "owner", "token") == [lease[b"owner"], lease[b"token"]]
    assert [running.service.stop() for running in (standby, active)] == [0, 0]


def test_vpush_sends_on_in_order_and_once_when_its_settings_change(start: Start) -> None:
    """Also change them while the target is stopped, when it is unknown which messages it has."""
    with EmbeddedServer() as target, Redis(port=target.port) as there:
        sender = start("vpush", outRedis=target.url, linkTimeout=2)
        until(lambda: sender.log("active"))
        with pushing(sender) as pushed:
            until(lambda: sender.count("settled"))
            for changes in ({"batch": 10}, {"pending": "another"}, {"window": 2, "in": "in"}):
                assert "refused" not in sender.order(**changes)
                # It takes nothing before the new run has agreed with the target.
                taken = sender.count("settled")
                until(lambda taken=taken: sender.count("settled") > taken)  # type: ignore[misc]
            os.kill(target.pid, signal.SIGSTOP)
            try:
                until(lambda: sender.redis.llen("another"))
                assert "refused" not in sender.order(pending="third")
                assert not sender.redis.exists("another")
            finally:
                os.kill(target.pid, signal.SIGCONT)
        until(lambda: sender.count("settled") == len(pushed), 60)
        arrived: Any = there.lrange("there", 0, -1)
        assert arrived[::-1] == pushed
        assert sender.redis.hget(KEYS.lease, "owner") == b"1"
        assert len(sender.log("registered")) == 1
        assert sender.service.stop() == 0


def test_mdispatch_changes_lists_and_policy_under_load(start: Start) -> None:
    dispatcher = start("mdispatch", batch=7)
    with pushing(dispatcher) as pushed:
        for number in range(1, 6):
            taken = dispatcher.count("taken")
            until(lambda taken=taken: dispatcher.count("taken") > taken)  # type: ignore[misc]
            dispatcher.order(out=f"work{number}", pending=f"pending{number}", messageTimeout=10 + number)
    until(lambda: dispatcher.count("delivered") == len(pushed))
    outs = ["work", *(f"work{number}" for number in range(1, 6))]
    assert [message for out in outs for message in dispatcher.held(out)] == pushed
    assert all(map(dispatcher.held, outs))
    assert dispatcher.redis.hmget(KEYS.policy, "messageTimeout", "out") == [b"15", b"work5"]
    assert dispatcher.service.stop() == 0


def test_answers_come_back_after_a_reload_that_asks_for_them(start: Start) -> None:
    dispatcher = start("mdispatch")
    dispatcher.redis.lpush("in", '{"meta": {"id": "1", "replyTo": "demo:reply:asked"}}')
    until(lambda: dispatcher.held("work"))
    dispatcher.order(res="answers")
    dispatcher.redis.lpush("answers", '{"meta": {"id": "1"}}')
    until(lambda: dispatcher.held("demo:reply:asked"))
    dispatcher.redis.rename(KEYS.metric("done"), "kept")
    dispatcher.redis.set(KEYS.metric("done"), "no hash")
    dispatcher.redis.lpush("in", '{"meta": {"id": "2", "replyTo": "demo:reply:asked"}}')
    dispatcher.redis.lpush("answers", '{"meta": {"id": "2"}}')
    until(lambda: dispatcher.redis.llen("pending:answers:1"))
    dispatcher.order(pending="another")
    assert dispatcher.redis.llen("another:answers:1") == 1
    dispatcher.redis.rename("kept", KEYS.metric("done"))
    until(lambda: len(dispatcher.held("demo:reply:asked")) == 2)


def get(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def test_monitor_watches_one_namespace_more_and_shows_it(start: Start) -> None:
    ports = [free_port(), free_port()]
    patient = {"messageTimeout": 600, "messageExpire": 3_600}
    shop, yard = (
        start("mdispatch", redisNamespace=name, pending=f"{name}:pending", **patient, **{"in": f"{name}:in"})
        for name in ("shop", "yard")
    )
    watcher = start("monitor", metricsPort=ports[0])
    for each in (shop, yard):
        each.redis.lpush(each.settings["in"], "one")
    until(lambda: len(watcher.held("work")) == 2)
    watcher.redis.lpush("yard:done", 1)
    assert watcher.order(watch=["shop", "yard"], metricsPort=ports[1])["reloaded"] == "1"
    until(lambda: watcher.redis.hget("yard:metrics:done", "count") == b"1")
    assert 'namespace="yard"' in get(ports[1])
    with pytest.raises(ConnectionRefusedError):
        get(ports[0])
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert watcher.order(watch=["shop"], metricsPort=port)["refused"] == f"port {port} is taken: set metricsPort"
    assert 'namespace="yard"' in get(ports[1])
    watcher.redis.lpush("shop:done", 1)
    until(lambda: watcher.redis.hget("shop:metrics:done", "count") == b"1")
    assert watcher.count("reload", "failed") == 1
    assert watcher.service.stop() == 0


@pytest.mark.parametrize("name", ["mpush", "vpush", "monitor"])
def test_a_secret_that_was_rotated_is_read_again_and_used(tmp_path: Path, name: str) -> None:
    """SIGHUP makes the service read the secret's file again; all later connections use the new password."""
    secret = tmp_path / "secret"
    with EmbeddedServer(requirepass="old") as server, Redis(port=server.port, password="old") as redis:
        url = server.url.replace("redis://", "redis://:{}@")
        secret.write_text(f"{url.format('old')}\n")
        out = {"outRedis": url.format("old")} if name == "vpush" else {}
        running = ReloadableService(name, tmp_path, redis, "", **out)
        del running.settings["redis"]
        running.write()
        running.service._environment["REDIS_FILE"] = str(secret)
        with running.service:
            until(lambda: running.log("registered"))
            redis.acl_setuser("default", enabled=True, passwords=["+new"])
            secret.write_text(url.format("wrong"))
            running.service.signal(signal.SIGHUP)
            until(lambda: running.log("reload refused"))
            assert "redis: the server refuses the new login" in running.log("reload refused")[0]["problem"]
            secret.write_text(url.format("new"))
            running.write(**({"outRedis": url.format("new")} if out else {}))
            running.service.signal(signal.SIGHUP)
            until(lambda: running.log("reloaded"))
            changed = {"redis": "another login"} | ({"outRedis": "another login"} if out else {})
            assert running.log("reloaded")[0]["changes"] == changed
            before = running.log("registered")
            redis.acl_setuser("default", enabled=True, passwords=["-old"])
            redis.client_kill_filter(_type="normal", skipme=True)
            if name != "monitor":
                redis.lpush("in", "after")
                until(lambda: redis.llen("there" if out else "b") == 1)
            assert running.service.stop() == 0
            assert running.log("registered") == before, "it is the same instance"
            assert not running.log("failed")
        assert not redis.exists(KEYS.ids)
        assert not any(word in running.service.log_text() for word in (":old@", ":new@", ":wrong@"))


def test_the_pipelines_login_needs_a_restart() -> None:
    other = pipeline.Settings(**ELSEWHERE | {"redis": "redis://:secret@h"}, watch=["shop"], archive="/nowhere")
    with pytest.raises(SettingsError, match="cannot change while the service runs"):
        other.changes_from(PIPELINE)
