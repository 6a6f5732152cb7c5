"""The scripts of mdedupe, compared with a model: any messages, instances that die anywhere, and time that passes."""

from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from redis import Redis

from common.orphans import _adopt
from common.settle import digest
from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer
from services.mdedupe.deduplication import METRICS, _dedupe, _dedupe_batch
from tests.support.machines import run_machine

KEYS: Final = Keys("once")
EXPIRE: Final = 1_000
CAPACITY: Final = 4
INSTANCES: Final = ("pending:1", "pending:2")
messages = st.sampled_from([b"%d" % number for number in range(7)])
instances = st.sampled_from(INSTANCES)


class Deduplication(RuleBasedStateMachine):
    """Keys are the SHA-1 of the messages, or made by the caller: the first letter, so that the kinds do not meet."""

    redis: Any

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.waiting: list[bytes] = []
        self.pending: dict[str, list[bytes]] = {name: [] for name in INSTANCES}
        self.remembered: dict[tuple[str, bytes], float] = {}
        """Age in seconds, oldest first."""
        self.out: list[bytes] = []
        self.again: list[bytes] = []
        self.forgotten = 0

    @rule(pushed=st.lists(messages, min_size=1, max_size=6))
    def push(self, pushed: list[bytes]) -> None:
        self.redis.lpush("in", *pushed)
        self.waiting += pushed

    @rule(name=instances)
    def take_and_die(self, name: str) -> None:
        """BLMOVE moves a message, and the instance dies before it sends anything else."""
        if self.waiting:
            self.redis.lmove("in", name, "RIGHT", "LEFT")
            self.pending[name].append(self.waiting.pop(0))

    @rule()
    def adopt(self) -> None:
        """Let the first instance take over what the second one has, before what it has itself."""
        own, orphan = INSTANCES
        counted = {"holds": KEYS.held, "missing": KEYS.metric("missing")}
        named = {"orphan": orphan, "own": own, "id": "2", "grace": 10, **counted}
        assert self.redis.execute_command(*_adopt.by_source(**named)) == len(self.pending[orphan])
        self.pending[own] = self.pending[orphan] + self.pending[own]
        self.pending[orphan] = []

    @rule(name=instances, batch=st.integers(1, 5), size=st.integers(1, 5))
    def move(self, name: str, batch: int, size: int) -> None:
        named = self._named(name) | {"source": "in", "batch": batch, "bytes": size, "unseen": 1, "largest": 0}
        moved, waits, _ = self.redis.execute_command(*_dedupe.by_source(**named))
        both = self.pending[name] + self.waiting
        assert moved == min(batch, size, len(both))
        assert waits == len(both) - moved
        self._pass("digest", both[:moved])
        gone = len(self.pending[name])
        del self.pending[name][:moved], self.waiting[: max(moved - gone, 0)]

    @rule(name=instances, many=st.integers(1, 5), late=st.booleans())
    def settle(self, name: str, many: int, *, late: bool) -> None:
        """Settle a batch by keys of the caller; a late call finds other messages, and does nothing."""
        batch, held = self.pending[name][:many], len(self.pending[name])
        if not batch:
            return
        named = {"held": held, "digest": digest([*batch[:-1], b"other"] if late else batch), "known": batch}
        done = self.redis.execute_command(*_dedupe_batch.by_source(**self._named(name), **named))
        assert done == (0 if late else 1)
        if done:
            self._pass("known", batch)
            del self.pending[name][:many]

    @rule(seconds=st.sampled_from([1, EXPIRE // 2, EXPIRE]))
    def time_passes(self, seconds: int) -> None:
        for key in self.redis.zrange(KEYS.remembered, 0, -1):
            self.redis.zincrby(KEYS.remembered, -1_000_000 * seconds, key)
        self.remembered = {key: age + seconds for key, age in self.remembered.items()}

    def _named(self, name: str) -> dict[str, Any]:
        counted = {"holds": KEYS.held, "missing": KEYS.metric("missing"), "taken": KEYS.metric("taken")}
        numbers = {"expire": EXPIRE, "capacity": CAPACITY, "token": 0}
        lists = {"pending": name, "out": "out", "duplicates": "again", "origin": "in", "remembered": KEYS.remembered}
        return {**counted, **numbers, **lists, **{metric: KEYS.metric(metric) for metric in METRICS}}

    def _pass(self, kind: str, batch: list[bytes]) -> None:
        for message in batch:
            key = (kind, message)
            if self.remembered.get(key, EXPIRE) < EXPIRE:
                self.again.append(message)
            else:
                self.out.append(message)
                self.remembered.pop(key, None)
                self.remembered[key] = 0
        self.remembered = {key: age for key, age in self.remembered.items() if age < EXPIRE}
        beyond = max(len(self.remembered) - CAPACITY, 0)
        self.forgotten += beyond
        self.remembered = dict([*self.remembered.items()][beyond:])

    @invariant()
    def all_agrees(self) -> None:
        lists = {"in": self.waiting, "out": self.out, "again": self.again, **self.pending}
        for name, expected in lists.items():
            assert self.redis.lrange(name, 0, -1)[::-1] == expected, name
        assert int(self.redis.hget(KEYS.metric("forgotten"), "count") or 0) == self.forgotten
        counts = {name: int(self.redis.hget(KEYS.metric(name), "count") or 0) for name in ("taken", *METRICS)}
        held = sum(map(int, self.redis.hvals(KEYS.held)))
        assert counts["settled"] == counts["delivered"] == len(self.out) + len(self.again)
        assert counts["taken"] == counts["settled"] + held
        assert (counts["duplicate"], counts["dropped"]) == (len(self.again), 0)
        assert not self.redis.exists(KEYS.metric("missing"))


def test_any_moves_agree_with_the_model(server: EmbeddedServer) -> None:
    with Redis.from_url(server.url) as redis:
        Deduplication.redis = redis
        run_machine(Deduplication, 25, 20, derandomize=False)
