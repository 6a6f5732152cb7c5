"""Fleet: replicas of one service on a server, with a publisher and assertions about its messages."""

import asyncio
import json
import random
import threading
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from penstock.accounting.answers import audit_answers
from penstock.accounting.audit import audit
from penstock.accounting.tracked import audit_tracked
from penstock.base.encoding import decoded, encoded
from penstock.base.keys import Keys, pending_of
from penstock.testing.forkserver import ForkServer
from tests.reliability.replica import Replica
from tests.support.harness import until
from tests.support.vpush import logged

NAMESPACE = "demo"


@dataclass(frozen=True)
class QueueService:
    """What the suite needs to know of a service: its settings, its input list and its output lists.

    Subclass it if the settings have other names, or if an output list does not hold the message itself.
    """

    name: str
    source: str = "work:in"
    pending: str = "work:pending"
    outs: tuple[str, ...] = ("work:out0", "work:out1")
    ends_in: tuple[str, str] = ("taken", "delivered")
    """The metrics of messages taken and of copies delivered; their fields count the copies for each out list."""
    can_lack_namespace: bool = True
    """True if it can run without a namespace."""
    namespace: str = NAMESPACE
    module: str = ""
    """The module to run instead of the service, if any."""

    def settings(self) -> dict[str, object]:
        return {"in_": self.source, "pending": self.pending, "out": json.dumps(self.outs), "pop_timeout": 5}

    def copy(self, message: bytes) -> bytes:
        """Return what every out list holds of ``message``."""
        return message

    def packed(self, message: bytes) -> bytes:
        """Return what clients push for ``message``."""
        return message

    def opened(self, carried: bytes) -> bytes:
        """Return the message for which ``packed`` returns ``carried``; any other bytes unchanged."""
        return carried


@dataclass(frozen=True)
class Routing(QueueService):
    """hrouter, with one rule for all requests; the message is their body."""

    name: str = "hrouter"
    outs: tuple[str, ...] = ("work:out",)
    can_lack_namespace: bool = False

    def settings(self) -> dict[str, object]:
        rules = json.dumps([{"match": "all", "to": self.outs[0]}])
        return {"in_": self.source, "pending": self.pending, "rules": rules, "pop_timeout": 5}

    def packed(self, message: bytes) -> bytes:
        request = {"id": "3-1f", "replyTo": "work:res", "method": "POST", "path": "/"}
        return json.dumps({**request, "body64": b64encode(message).decode()}).encode()

    def opened(self, carried: bytes) -> bytes:
        return b64decode(json.loads(carried)["body64"]) if b'"body64"' in carried else carried


@dataclass(frozen=True)
class Dispatching(QueueService):
    """mdispatch, which feeds one list."""

    name: str = "mdispatch"

    outs: tuple[str, ...] = ("work:out",)
    can_lack_namespace: bool = False

    def settings(self) -> dict[str, object]:
        return super().settings() | {"out": self.outs[0]}


@dataclass(frozen=True)
class Deduplicating(Dispatching):
    """mdedupe; no two messages that a test of the suite pushes are equal."""

    name: str = "mdedupe"

    def settings(self) -> dict[str, object]:
        return super().settings() | {"by": "id"}


@dataclass(frozen=True)
class Limiting(Dispatching):
    """mlimit, whose rate is higher than that of the suite's messages."""

    name: str = "mlimit"

    def settings(self) -> dict[str, object]:
        return super().settings() | {"rate": 1_000_000}


@dataclass(frozen=True)
class Balancing(QueueService):
    """mbalance; with one list, which gets every message."""

    name: str = "mbalance"

    outs: tuple[str, ...] = ("work:out",)
    can_lack_namespace: bool = False


@dataclass(frozen=True)
class Watching(QueueService):
    """monitor, for the namespace of the others; it takes the reports of workers."""

    name: str = "monitor"
    source: str = f"{NAMESPACE}:done"
    pending: str = f"watcher:pending:{NAMESPACE}"
    outs: tuple[str, ...] = ()
    can_lack_namespace: bool = False
    namespace: str = "watcher"

    def settings(self) -> dict[str, object]:
        return {"watch": NAMESPACE, "metrics_port": 0, "pop_timeout": 5}


class Fleet:
    """Replicas of ``service`` in one namespace on the server at ``url``; the end of the block kills them."""

    def __init__(
        self, service: QueueService, url: str, fork_server: ForkServer, directory: Path, settings: Mapping[str, object]
    ) -> None:
        self.service, self.url, self.keys = service, url, Keys(service.namespace)
        self.redis: Any = Redis.from_url(url)
        self.replicas: list[Replica] = []
        """All replicas ever started, in order."""
        self._fork_server, self._directory, self._settings = fork_server, directory, settings
        self._ends = ExitStack()

    def start(self, **settings: object) -> Replica:
        """Start one more replica, without waiting for its registration."""
        general = {"redis": self.url, "redis_namespace": self.keys.namespace, "service_expire": 30, "service_renew": 5}
        log = self._directory / f"{self.service.name}-{len(self.replicas)}.log"
        named = {**general, **self.service.settings(), **self._settings, **settings}
        replica = Replica(self._fork_server, self.service.name, log, **named)
        replica.module = self.service.module or replica.module
        self.replicas.append(replica)
        return self._ends.enter_context(replica)

    def listening(self, count: int = 1) -> list[Replica]:
        """Start ``count`` more replicas and wait until they handle signals, not for their registrations."""
        started = [self.start() for _ in range(count)]
        until(lambda: all(replica.listens for replica in started), every=0.001)
        return started

    def up(self, **settings: object) -> Replica:
        """Start one more replica and wait for its registration."""
        replica = self.start(**settings)
        until(lambda: self.id_of(replica))
        return replica

    def waiting(self, replicas: int = 1) -> None:
        """Wait until ``replicas`` replicas are blocked in a pop on the server, beside those of other services."""
        until(lambda: self.redis.info("clients")["blocked_clients"] >= replicas)

    def id_of(self, replica: Replica) -> str | None:
        """Return the id under which it is registered, or was, if it was killed; else None."""
        for id in self.ids():
            if self.redis.hget(self.keys.instance(id), "pid") == str(replica.pid).encode():
                return id
        if replica.running:
            return None
        lines = logged(replica, "registered")  # others may have removed it meanwhile
        return next((str(line["id"]) for line in reversed(lines) if line["pid"] == replica.pid), None)

    def ids(self) -> list[str]:
        return [id.decode() for id in self.redis.lrange(self.keys.ids, 0, -1)]

    def forget(self, *replicas: Replica) -> None:
        """Remove the registrations of dead replicas, as if they had expired."""
        for replica in replicas:
            if id := self.id_of(replica):
                self.redis.delete(self.keys.instance(id))

    def push(self, messages: Iterable[bytes]) -> None:
        self.redis.lpush(self.service.source, *map(self.service.packed, messages))

    def push_to_suspended(self, messages: Iterable[bytes]) -> None:
        """Push messages that the only replica, suspended by SIGSTOP, takes but cannot deliver."""
        out, aside = self.service.outs[0], "aside"
        there = self.redis.exists(out) and self.redis.rename(out, aside)
        self.redis.set(out, "in the way")
        self.push(messages)
        until(self.pending)
        self.redis.delete(out)
        if there:
            self.redis.rename(aside, out)

    def held(self, out: str) -> list[bytes]:
        """Return the messages of ``out``, oldest first."""
        found: list[bytes] = []
        while chunk := self.redis.lrange(out, len(found), len(found) + 49_999):
            found += chunk
        return [*map(self.service.opened, found[::-1])]

    def pending(self) -> dict[str, int]:
        """Return the length of every pending list that is not empty, by name."""
        ids = [None, *(id.decode() for id in self.redis.zrange(self.keys.owners, 0, -1))]
        names = [pending_of(self.service.pending, id) for id in ids]
        return {name: length for name in names if (length := self.redis.llen(name))}

    def is_settled(self) -> bool:
        """Return True if no message waits or is pending."""
        return self.redis.llen(self.service.source) == 0 and not self.pending()

    def wait_until_settled(self, timeout: float = 120) -> None:
        until(self.is_settled, timeout)

    def taken(self) -> int:
        """Return the number of settled messages, by the counters."""
        return self.metric(self.service.ends_in[0]).get("count", 0) - sum(map(int, self.redis.hvals(self.keys.held)))

    def until_more_is_taken(self, timeout: float = 60) -> float:
        """Wait until another message is settled; return the seconds that it took."""
        begun, before = time.monotonic(), self.taken()
        until(lambda: self.taken() > before, timeout)
        return time.monotonic() - begun

    def metric(self, name: str) -> dict[str, int]:
        return {field.decode(): int(value) for field, value in self.redis.hgetall(self.keys.metric(name)).items()}

    def stop(self) -> None:
        """Stop all running replicas, once they handle signals; each must end with status 0."""
        running = [replica for replica in self.replicas if replica.running]
        until(lambda: all(replica.listens for replica in running))
        assert [replica.stop() for replica in running] == [0] * len(running)

    def __enter__(self) -> Self:
        self._ends.callback(self.redis.close)
        return self

    def __exit__(self, *error: Any) -> None:
        self._ends.__exit__(*error)


class Publisher:
    """Push numbered messages in batches of random sizes until the block ends.

    Push more slowly while more than ``most_waiting`` messages wait. ``first`` is the number of the first message.
    """

    def __init__(
        self, fleet: Fleet, rng: random.Random, *, largest_batch: int = 50, most_waiting: int = 5_000, first: int = 0
    ) -> None:
        self._redis: Any = Redis.from_url(fleet.url, retry=Retry(NoBackoff(), 0))  # so that nothing is pushed twice
        self._source, self._packed = fleet.service.source, fleet.service.packed
        self._rng = random.Random(rng.random())
        self._largest_batch, self._most_waiting, self._first = largest_batch, most_waiting, first
        self.accepted: list[bytes] = []
        """Confirmed by the server: each must be delivered once, in this order if the service is ordered."""
        self.unsure: list[bytes] = []
        """Pushed, but the reply was lost: each may be delivered once."""
        self.refused = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def _publish(self) -> None:
        number = self._first
        while not self._ended.is_set():
            numbers = range(number, number + self._rng.randint(1, self._largest_batch))
            number = numbers.stop
            batch = [b"message %d" % each for each in numbers]
            self._ended.wait(0.05 if self._push(batch) > self._most_waiting else self._rng.random() * 0.004)

    def _push(self, batch: list[bytes]) -> int:
        """Push ``batch``; return the number of messages waiting, 0 if unknown."""
        try:
            waiting: int = self._redis.lpush(self._source, *map(self._packed, batch))
        except ResponseError:
            self.refused += len(batch)
            return 0
        except RedisError:
            self.unsure += batch
            return 0
        self.accepted += batch
        return waiting

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._redis.close()


def assert_all_settled(
    fleet: Fleet, accepted: Iterable[bytes], unsure: Iterable[bytes] = (), killed: Iterable[str] = ()
) -> None:
    """Wait until all is settled, stop the fleet, and assert that messages and registrations are accounted for."""
    fleet.wait_until_settled()
    fleet.stop()
    assert_accounted(fleet, accepted, unsure)
    assert_registry_clean(fleet, killed)


def assert_accounted(fleet: Fleet, accepted: Iterable[bytes], unsure: Iterable[bytes] = ()) -> None:
    """Assert that every out list has every message once and no other, by content, and that counters and audit agree.

    A message that was in hand when instances died three times may be a dead letter instead.
    """
    copy = fleet.service.copy
    owed, maybe = Counter(map(copy, accepted)), Counter(map(copy, unsure))
    taken, delivered = fleet.service.ends_in
    poison, copies = _poison(fleet), 0
    for out in fleet.service.outs:
        found = Counter(fleet.held(out))
        lost, surplus = owed - found - poison, found + poison - owed - maybe
        assert (out, _few(lost), _few(surplus)) == (out, {}, {}), f"{lost.total()} lost, {surplus.total()} doubled"
        counted = {name: fleet.metric(name).get(out, 0) for name in fleet.service.ends_in}
        assert counted == {taken: found.total() + poison.total(), delivered: found.total()}, out
        copies += found.total()
    messages = fleet.metric(taken).get("count", 0) - poison.total()
    assert (messages * len(fleet.service.outs), fleet.metric(delivered).get("count", 0)) == (copies, copies)
    assert asyncio.run(audited(fleet)) == []


def _poison(fleet: Fleet) -> Counter[bytes]:
    letters = [json.loads(decoded(letter)) for letter in fleet.held(fleet.keys.dead)]
    return Counter(encoded(letter["message"]) for letter in letters if letter["reason"] == "poison")


async def audited(fleet: Fleet) -> list[str]:
    """Return the problems that ``penstock audit`` would report."""
    async with AsyncRedis.from_url(fleet.url) as redis:
        tracked = await audit_tracked(redis, fleet.keys)
        found = tracked or await audit(redis, fleet.keys)
        _, problems = await audit_answers(redis, fleet.keys) if tracked else (None, [])
    assert found
    return found.problems + problems


def assert_registry_clean(fleet: Fleet, killed: Iterable[str] = ()) -> None:
    """Assert that nothing is registered or pending; ``killed`` ids may still be among the owners."""
    last = int(fleet.redis.get(fleet.keys.counter) or 0)
    registered = [id for id in range(1, last + 1) if fleet.redis.exists(fleet.keys.instance(str(id)))]
    owners = {id.decode() for id in fleet.redis.zrange(fleet.keys.owners, 0, -1)} - set(killed)
    assert (fleet.ids(), registered, owners, fleet.pending()) == ([], [], set(), {})


def _few(messages: Counter[bytes]) -> dict[bytes, int]:
    return {message[:50]: count for message, count in messages.most_common(5)}


def register(dispatch: Fleet, messages: list[bytes]) -> None:
    """Push ``messages``, wait until they are tracked, and take them as workers would."""
    dispatch.push(messages)
    until(lambda: dispatch.redis.zcard(dispatch.keys.deadlines) == len(messages))
    dispatch.redis.delete("work:out")


def assert_done(dispatch: Fleet, fleet: Fleet, count: int) -> None:
    """Assert that ``count`` messages are done, each once, and that nothing of them is left."""
    fleet.wait_until_settled()
    assert dispatch.redis.hget(dispatch.keys.metric("done"), "count") == b"%d" % count
    assert not dispatch.redis.exists(dispatch.keys.metric("done:unknown"), dispatch.keys.deadlines)
    assert asyncio.run(audited(dispatch)) == []
