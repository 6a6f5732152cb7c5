"""The lease: one active replica at a time, and a token that only grows."""

import asyncio
from collections.abc import Awaitable, Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from redis.asyncio import Redis

from penstock.base.encoding import decoded
from penstock.core.lease import Lease
from tests.support.clock import Span
from tests.support.machines import run_machine
from tests.support.membership import KEYS
from tests.support.tracked import now

Fill = Callable[[], Awaitable[object]]

OWNERS = ("1", "2", "3")


def lease(redis: "Redis", owner: str, life: float = 1000) -> Lease:
    return Lease(redis, KEYS.lease, owner, life)


async def test_a_standby_writes_nothing_and_a_full_server_takes_the_lease(redis: Redis, fill: Fill) -> None:
    await fill()
    assert await lease(redis, "1").hold() == 1
    assert await lease(redis, "1").hold() == 1
    await redis.config_resetstat()
    assert await lease(redis, "2").hold() is None
    stats = await redis.info("commandstats")
    assert {name.removeprefix("cmdstat_") for name in stats} - {"config|resetstat"} == {"evalsha", "time", "hmget"}


async def test_a_release_without_a_holder_leaves_no_key(redis: Redis) -> None:
    await lease(redis, "1").release()
    assert not await redis.exists(KEYS.lease)


async def test_the_lease_runs_out_by_the_servers_clock(redis: Redis) -> None:
    first, second = lease(redis, "1", life=0.1), lease(redis, "2")
    began = await now(redis)
    assert await first.hold() == 1
    while (token := await second.hold()) is None:
        await asyncio.sleep(0.005)
    assert token == 2
    assert int(1000 * await now(redis)) - int(1000 * began) >= 100, "counted in whole milliseconds"
    assert await first.hold() is None


async def test_it_is_kept_for_as_long_as_is_set(redis: Redis) -> None:
    began = await now(redis)
    await lease(redis, "1", life=12.5).hold()
    expires = await redis.hget(KEYS.lease, "expires")
    assert int(expires or 0) / 1000 == Span(began, await now(redis)) + 12.5


class Replicas(RuleBasedStateMachine):
    """Replicas acquire, release and lose the lease in any order, compared with a model."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.redis = Redis.from_url(self.url)
        self.leases = {owner: lease(self.redis, owner) for owner in OWNERS}
        self.holder: str | None = None
        self.last: str | None = None
        self.seen: list[tuple[int, str]] = []
        self.runner.run(self._forget())

    @rule(owner=st.sampled_from(OWNERS))
    def hold(self, owner: str) -> None:
        token = self.runner.run(self.leases[owner].hold())
        if self.holder not in (None, owner):
            assert token is None
            return
        assert token is not None
        if self.holder is None:
            assert all(token > older for older, _ in self.seen)
            self.seen.append((token, owner))
        assert (token, owner) == self.seen[-1]
        self.holder = self.last = owner

    @rule(owner=st.sampled_from(OWNERS))
    def release(self, owner: str) -> None:
        self.runner.run(self.leases[owner].release())
        if self.holder == owner:
            self.holder = None

    @rule()
    def run_out(self) -> None:
        """Let the lease expire."""
        if self.last:
            self.runner.run(self._set_expired())
        self.holder = None

    async def _forget(self) -> None:
        await self.redis.delete(KEYS.lease)

    async def _set_expired(self) -> None:
        await self.redis.hset(KEYS.lease, "expires", 1)

    @invariant()
    def the_key_names_the_holder(self) -> None:
        if self.holder:
            assert self.runner.run(self._owner()) == self.holder

    async def _owner(self) -> str:
        return decoded(await self.redis.hget(KEYS.lease, "owner"))

    def teardown(self) -> None:
        self.runner.run(self.redis.aclose())
        self.runner.close()


def test_in_any_order_of_events_one_holds_it_and_tokens_grow(redis_url: str) -> None:
    Replicas.url = redis_url
    run_machine(Replicas, 40, 30, derandomize=False)


async def test_a_lease_from_before_the_clock_was_set_back_is_over(redis: Redis) -> None:
    assert await lease(redis, "1", life=30).hold() == 1
    await redis.hincrby(KEYS.lease, "expires", 3_600_000)
    assert await lease(redis, "2", life=5).hold() == 2


async def test_a_standby_with_a_shorter_life_takes_no_lease_that_is_kept(redis: Redis) -> None:
    assert await lease(redis, "1", life=600).hold() == 1
    assert await lease(redis, "2", life=5).hold() is None
