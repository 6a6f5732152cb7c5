"""The scripts of mlimit, compared with a model: any buckets and deadlines, late calls, time that passes."""

import json
from math import inf
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from redis import Redis

from common.settle import digest
from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer
from services.mlimit.delay import _delay, _release
from tests.support.machines import run_machine

KEYS: Final = Keys("rate")
INTERVAL: Final = 1_000
"""Seconds of a token, so long that the time which the test itself takes does not matter."""
BURST: Final = 2
CAPACITY: Final = 6
US: Final = 1_000_000
users = st.sampled_from("abc")


class Limit(RuleBasedStateMachine):
    """The model keeps times relative to the server's clock, in tokens: buckets are refilled by whole ones."""

    redis: Any

    def __init__(self) -> None:
        super().__init__()
        self.redis.flushall()
        self.number = 0
        self.pending: list[bytes] = []
        self.buckets: dict[str, int] = {}
        """In how many tokens' time each is full again."""
        self.waiting: list[tuple[int, bytes]] = []
        """In how many tokens' time each message is due, in the order of the buckets."""
        self.out: list[bytes] = []
        self.dead: list[bytes] = []
        self.limited = 0

    @rule(said=st.lists(st.tuples(users, st.sampled_from([None, 0, 1, 2, 5])), min_size=1, max_size=5))
    def take(self, said: list[tuple[str, int | None]]) -> None:
        """Messages come to the pending list, each with a deadline some tokens from now, and a half."""
        for user, tokens in said:
            self.number += 1
            words = {"user": user, "n": self.number} | ({} if tokens is None else {"in": tokens})
            self.pending.append(json.dumps(words).encode())
            self.redis.lpush("pending:1", self.pending[-1])

    @rule(many=st.integers(1, 5), late=st.booleans())
    def settle(self, many: int, *, late: bool) -> None:
        batch, held = self.pending[:many], len(self.pending)
        if not batch:
            return
        seconds, micros = self.redis.time()
        found = [json.loads(message) for message in batch]
        names = sorted({each["user"] for each in found})
        ends = [seconds + micros / US + (each["in"] + 0.5) * INTERVAL if "in" in each else inf for each in found]
        places = [
            f"{names.index(each['user']) + 1}" + ("" if end == inf else f" {end:.6f}")
            for each, end in zip(found, ends, strict=True)
        ]
        done, next_due = self.redis.execute_command(
            *_delay.by_source(
                **self._named(),
                **{name: KEYS.metric(name) for name in ("dead", "limited")},
                pending="pending:1",
                letters=KEYS.dead,
                buckets=[KEYS.bucket_of(name) for name in names],
                held=held,
                digest=digest([*batch[:-1], b"other"] if late else batch),
                places=places,
                capacity=CAPACITY,
                source="in",
                interval=INTERVAL * US,
                burst=BURST,
            )
        )
        assert done == (-1 if len(self.waiting) >= CAPACITY else 0 if late else 1)
        if done == 1:
            del self.pending[:many]
            self._pass(batch, found)
        assert (next_due < 0) == (not self.waiting)

    def _pass(self, batch: list[bytes], found: list[dict[str, Any]]) -> None:
        overdue = any(due <= 0 for due, _ in self.waiting)
        for message, words in zip(batch, found, strict=True):
            full_at = max(self.buckets.get(words["user"], 0), 0)
            due = full_at - (BURST - 1)
            if max(due, 0) > words.get("in", inf):
                self.dead.append(message)
                continue
            self.buckets[words["user"]] = full_at + 1
            self.limited += due > 0
            if due > 0 or overdue:
                self.waiting.append((due, message))
            else:
                self.out.append(message)

    @rule(batch=st.integers(1, 4))
    def release(self, batch: int) -> None:
        named = self._named() | {"batch": batch, "bytes": 10_000, "interval": INTERVAL * US}
        moved, next_due = self.redis.execute_command(*_release.by_source(**named))
        due = sorted((each for each in self.waiting if each[0] <= 0), key=lambda each: each[0])
        assert moved == min(len(due), batch)
        gone = self.redis.lrange("out", 0, moved - 1)[::-1] if moved else []
        self.out += gone
        self.waiting = [each for each in self.waiting if each[1] not in gone]
        assert {message for _, message in due} >= set(gone)
        assert (next_due < 0) == (not self.waiting)

    @rule(tokens=st.integers(1, 4))
    def time_passes(self, tokens: int) -> None:
        """Move all times into the past by ``tokens`` tokens, and a little, so that what is due now is due."""
        for entry in self.redis.zrange(KEYS.waiting, 0, -1):
            self.redis.zincrby(KEYS.waiting, -tokens * INTERVAL * US, entry)
        for name in [*self.buckets]:
            self.buckets[name] -= tokens
            key = KEYS.bucket_of(name)
            if self.buckets[name] <= 0:
                self.redis.delete(key)
            else:
                self.redis.set(key, int(self.redis.get(key)) - tokens * INTERVAL * US)
        self.waiting = [(due - tokens, message) for due, message in self.waiting]

    def _named(self) -> dict[str, Any]:
        counted = {"holds": KEYS.held, "missing": KEYS.metric("missing"), "taken": KEYS.metric("taken")}
        metrics = {name: KEYS.metric(name) for name in ("settled", "delivered")}
        return {**counted, **metrics, "out": "out", "waiting": KEYS.waiting, "token": 0}

    @invariant()
    def all_agrees(self) -> None:
        waiting = {entry[16:] for entry in self.redis.zrange(KEYS.waiting, 0, -1)}
        assert waiting == {message for _, message in self.waiting}
        assert self.redis.lrange("out", 0, -1)[::-1] == self.out
        assert self.redis.lrange("pending:1", 0, -1)[::-1] == self.pending
        letters = [json.loads(letter)["message"].encode() for letter in self.redis.lrange(KEYS.dead, 0, -1)]
        assert letters[::-1] == self.dead
        for user in "abc":
            numbers = [each["n"] for each in map(json.loads, self.out) if each["user"] == user]
            assert numbers == sorted(numbers)
        names = ("taken", "settled", "delivered", "dead", "limited")
        counts = {name: int(self.redis.hget(KEYS.metric(name), "count") or 0) for name in names}
        held = sum(map(int, self.redis.hvals(KEYS.held)))
        assert counts["taken"] == counts["settled"] + held
        assert counts["settled"] == len(self.out) + len(self.dead)
        assert (counts["delivered"], counts["dead"]) == (len(self.out), len(self.dead))
        assert counts["limited"] == self.limited
        assert not self.redis.exists(KEYS.metric("missing"))


def test_any_moves_agree_with_the_model(server: EmbeddedServer) -> None:
    with Redis.from_url(server.url) as redis:
        Limit.redis = redis
        run_machine(Limit, 40, 25, derandomize=False)
