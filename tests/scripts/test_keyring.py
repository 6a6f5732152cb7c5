"""Keyrings on a real server: replicas agree on keys, rotate and rewrap them, and forget owners."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from penstock.base.errors import Forgotten, Unopenable, WrongMasterKey
from penstock.core.connection import connect
from penstock.sealing import keyring as module
from penstock.sealing import sealed
from penstock.sealing.master import FileKey
from tests.support.clock import Span
from tests.support.harness import PATIENCE, eventually
from tests.support.sealing import AAD, FIRST, KEYS, SECOND, keyring
from tests.support.tracked import now

Fill = Callable[[], Awaitable[object]]
ANN = KEYS.owner_keys("ann")


class SlowKey(FileKey):
    """A master key that counts its unwraps and can be made to wait."""

    unwraps, gate = 0, asyncio.Event()

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        self.unwraps += 1
        await self.gate.wait()
        return await super().unwrap(wrapped, context)


@pytest.fixture
def slow() -> SlowKey:
    key = SlowKey([FIRST])
    key.gate = asyncio.Event()
    key.gate.set()
    return key


async def test_the_first_use_makes_a_key_that_other_replicas_use(redis: Redis) -> None:
    first, second = keyring(redis), keyring(redis)
    began = await now(redis)
    assert first.known("ann") is None
    message = await first.seal("ann", b"secret", AAD)
    assert await second.open("ann", message, AAD) == b"secret"
    keys = first.known("ann")
    assert keys
    assert keys.open(message, AAD) == b"secret"
    assert (keys.owner, keys.epoch) == ("ann", 1)
    assert b"secret" not in message
    (record,) = await first.owners()
    assert (record.owner, record.epoch, record.forgotten) == ("ann", 1, None)
    assert record.made == Span(int(began), await now(redis))


@pytest.mark.parametrize("owner", ["", "a b", "a|1", "ünï✓", "*?[x]", "keys:a"])
async def test_any_name_may_be_that_of_an_owner(redis: Redis, owner: str) -> None:
    message = await keyring(redis).seal(owner, b"secret", AAD)
    assert await keyring(redis).open(owner, message, AAD) == b"secret"
    assert [record.owner for record in await keyring(redis).owners()] == [owner]


async def test_another_owner_does_not_open_a_message_even_with_the_record_of_its_owner(redis: Redis) -> None:
    ring = keyring(redis)
    message = await ring.seal("ann", b"secret", AAD)
    with pytest.raises(Unopenable):
        await ring.open("bob", message, AAD)
    await ring.seal("bob", b"", AAD)
    with pytest.raises(Unopenable):
        await ring.open("bob", message, AAD)
    await redis.copy(ANN, KEYS.owner_keys("bob"), replace=True)
    with pytest.raises(WrongMasterKey, match="data key 1 of 'bob': changed after it was wrapped"):
        await keyring(redis).open("bob", message, AAD)


async def test_an_owner_without_keys_gets_none_by_opening(redis: Redis) -> None:
    message = await keyring(redis).seal("ann", b"secret", AAD)
    keys = await keyring(redis).all("bob")
    assert keys.due
    with pytest.raises(Unopenable):
        keys.open(message, AAD)
    assert not await redis.exists(KEYS.owner_keys("bob"))


async def test_replicas_that_race_for_the_first_key_agree(redis: Redis) -> None:
    for owner in map(str, range(20)):
        rings = [keyring(redis) for _ in range(5)]
        messages = await asyncio.gather(*(ring.seal(owner, b"secret", AAD) for ring in rings for _ in range(3)))
        assert {sealed.epoch_of(message) for message in messages} == {1}
        for ring in rings:
            assert {await ring.open(owner, message, AAD) for message in messages} == {b"secret"}


async def test_tasks_that_ask_at_once_unwrap_once(redis: Redis, slow: SlowKey) -> None:
    await keyring(redis).current("ann")
    ring = keyring(redis, slow)
    await asyncio.gather(*(ring.current("ann") for _ in range(50)), *(ring.all("ann") for _ in range(50)))
    assert slow.unwraps == 1


async def test_those_that_wait_while_the_master_key_is_away_do_not_wait_in_turn(redis: Redis, slow: SlowKey) -> None:
    await keyring(redis).seal("ann", b"", AAD)
    ring = keyring(redis, slow)
    slow.gate.clear()
    ways = [asyncio.create_task(ring.current("ann")) for _ in range(20)]
    await eventually(lambda: slow.unwraps == 1)
    slow._ciphers.clear()
    slow.gate.set()
    found = await asyncio.gather(*ways, return_exceptions=True)
    assert [type(each) for each in found] == [WrongMasterKey] * 20
    assert slow.unwraps == 1
    with pytest.raises(WrongMasterKey):
        await ring.current("ann")
    assert slow.unwraps == 2


async def test_after_a_rotation_old_messages_open_and_new_ones_have_a_new_key(redis: Redis) -> None:
    first, second = keyring(redis), keyring(redis)
    old = await first.seal("ann", b"old", AAD)
    assert await second.open("ann", old, AAD) == b"old"
    assert await first.rotate("ann") == 2
    new = await first.seal("ann", b"new", AAD)
    assert [sealed.epoch_of(each) for each in (old, new)] == [1, 2]
    for ring in (first, second, keyring(redis)):  # the second learns from the message that there is a newer key
        assert await ring.open("ann", old, AAD) == b"old"
        assert await ring.open("ann", new, AAD) == b"new"
    assert await asyncio.gather(*(keyring(redis).rotate("ann") for _ in range(5))) != [2] * 5
    assert await keyring(redis).open("ann", old, AAD) == b"old"


async def test_a_key_is_replaced_once_by_all_replicas_when_it_is_old(redis: Redis) -> None:
    rings = [keyring(redis) for _ in range(4)]
    await asyncio.gather(*(ring.current("ann") for ring in rings))
    await redis.hincrby(ANN, "made", -module.MOST_SECONDS)
    for ring in rings:
        ring.invalidate("ann")
    assert [keys.epoch for keys in await asyncio.gather(*(ring.current("ann") for ring in rings))] == [2] * 4
    assert [record.epoch for record in await rings[0].owners()] == [2]


async def test_a_key_is_replaced_after_its_messages_which_replicas_count_together(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "MOST_MESSAGES", 20)
    first, second = keyring(redis), keyring(redis)
    for ring in (first, second):
        for _ in range(9):
            await ring.seal("ann", b"", AAD)
        ring.invalidate()
        await ring.all("ann")
    assert await redis.hget(ANN, "sealed") == b"18"
    epochs = [sealed.epoch_of(await second.seal("ann", b"", AAD)) for _ in range(4)]
    assert epochs == [1, 1, 2, 2]
    assert await redis.hget(ANN, "sealed") == b"0"


async def test_nothing_of_a_forgotten_owner_opens_and_nothing_is_sealed_for_it(redis: Redis) -> None:
    ring, warm = keyring(redis), keyring(redis)
    message = await ring.seal("ann", b"secret", AAD)
    await ring.rotate("ann")
    kept = await ring.current("ann")
    assert await warm.open("ann", message, AAD) == b"secret"
    assert await ring.forget("ann") == 2
    warm.invalidate("ann")
    for each in (ring, warm, keyring(redis)):
        for _ in range(2):
            with pytest.raises(Forgotten):
                await each.open("ann", message, AAD)
            with pytest.raises(Forgotten):
                await each.seal("ann", b"more", AAD)
            with pytest.raises(Forgotten):
                await each.rotate("ann")
            assert each.known("ann") is None
    with pytest.raises(Forgotten):
        kept.open(message, AAD)
    assert {*await redis.hgetall(ANN)} == {b"forgotten"}
    since = await redis.hget(ANN, "forgotten")
    assert await ring.forget("ann") == 0
    assert await redis.hget(ANN, "forgotten") == since
    (record,) = await ring.owners()
    assert (record.owner, record.epoch, record.wrapped) == ("ann", 0, {})
    await ring.seal("bob", b"", AAD)


async def test_an_owner_may_be_forgotten_before_it_has_keys(redis: Redis) -> None:
    ring = keyring(redis)
    assert await ring.forget("ann") == 0
    with pytest.raises(Forgotten):
        await ring.current("ann")


async def test_a_replica_that_listens_forgets_at_once_and_one_that_does_not_after_its_time(
    redis: Redis, redis_url: str
) -> None:
    listening, deaf = keyring(redis, seconds=1000), keyring(redis, seconds=0.5)
    message = await listening.seal("ann", b"secret", AAD)
    async with connect(redis_url) as own:
        task = asyncio.create_task(listening.listen(own))

        async def is_heard() -> bool:
            return bool((await redis.pubsub_numsub(KEYS.key_changes))[0][1])

        await eventually(is_heard)
        assert await listening.open("ann", message, AAD) == b"secret"
        begun = time.monotonic()
        assert await deaf.open("ann", message, AAD) == b"secret"
        await keyring(redis).forget("ann")

        async def is_forgotten() -> bool:
            return listening.known("ann") is None

        await eventually(is_forgotten)
        with pytest.raises(Forgotten):
            await listening.open("ann", message, AAD)
        task.cancel()
        await asyncio.wait({task})
    with pytest.raises(Forgotten):  # noqa: PT012
        while time.monotonic() < begun + PATIENCE:
            await deaf.open("ann", message, AAD)
            await asyncio.sleep(0.01)
    assert time.monotonic() - begun >= 0.4


async def test_a_replica_that_begins_to_listen_again_trusts_nothing_from_before(redis: Redis, redis_url: str) -> None:
    ring = keyring(redis, seconds=1000)
    await ring.current("ann")
    async with connect(redis_url) as own:
        task = asyncio.create_task(ring.listen(own))

        async def is_invalidated() -> bool:
            return ring.known("ann") is None

        await eventually(is_invalidated)
        task.cancel()
        await asyncio.wait({task})


async def test_an_owner_that_is_forgotten_while_its_keys_are_read_is_forgotten(redis: Redis, slow: SlowKey) -> None:
    await keyring(redis).current("ann")
    ring = keyring(redis, slow)
    slow.gate.clear()
    reading = asyncio.create_task(ring.all("ann"))

    async def is_unwrapping() -> bool:
        return slow.unwraps > 0

    await eventually(is_unwrapping)
    await keyring(redis).forget("ann")
    ring.invalidate("ann")
    slow.gate.set()
    with pytest.raises(Forgotten):
        await reading


async def test_an_owner_that_is_forgotten_while_its_key_is_made_gets_none(redis: Redis) -> None:
    class Forgetting(FileKey):
        async def wrap(self, plain: bytes, context: bytes) -> bytes:
            await keyring(redis).forget("ann")
            return await super().wrap(plain, context)

    with pytest.raises(Forgotten):
        await keyring(redis, Forgetting([FIRST])).current("ann")
    assert {*await redis.hgetall(ANN)} == {b"forgotten"}


async def test_a_key_that_was_unwrapped_is_not_unwrapped_again(redis: Redis, slow: SlowKey) -> None:
    ring = keyring(redis, slow, seconds=0)
    for _ in range(5):
        await ring.seal("ann", b"", AAD)
    assert slow.unwraps == 1


async def test_a_new_master_key_wraps_all_data_keys_and_changes_no_message(redis: Redis) -> None:
    old, both, new = (FileKey(keys) for keys in ([FIRST], [SECOND, FIRST], [SECOND]))
    message = await keyring(redis, old).seal("ann", b"secret", AAD)
    await keyring(redis, old).rotate("ann")
    await keyring(redis, old).current("bob")
    await keyring(redis).forget("eve")
    with pytest.raises(WrongMasterKey, match=rf"data key [12] of 'ann': wrapped with the master key {old.id}, which"):
        await keyring(redis, new).current("ann")
    assert await keyring(redis, both).rewrap() == 3
    assert await keyring(redis, new).open("ann", message, AAD) == b"secret"
    for owner in ("ann", "bob"):
        with pytest.raises(WrongMasterKey):
            await keyring(redis, old).current(owner)
    with pytest.raises(Forgotten):
        await keyring(redis, new).current("eve")


async def test_a_rewrap_does_not_bring_back_what_was_forgotten_meanwhile(redis: Redis) -> None:
    await keyring(redis).current("ann")

    class Forgetting(FileKey):
        async def rewrap(self, wrapped: bytes, context: bytes) -> bytes:
            await keyring(redis).forget("ann")
            return await super().rewrap(wrapped, context)

    assert await keyring(redis, Forgetting([FIRST])).rewrap() == 0
    assert {*await redis.hgetall(ANN)} == {b"forgotten"}


async def test_on_a_full_server_owners_can_be_forgotten_and_messages_opened(redis: Redis, fill: Fill) -> None:
    ring = keyring(redis)
    message = await ring.seal("ann", b"secret", AAD)
    await fill()
    ring.invalidate()
    assert await ring.open("ann", message, AAD) == b"secret"
    with pytest.raises(OutOfMemoryError):
        await ring.current("bob")
    assert await ring.forget("ann") == 1
    with pytest.raises(Forgotten):
        await ring.current("ann")


async def test_the_cache_holds_a_bounded_number_of_owners(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OWNERS", 3)
    ring = keyring(redis)
    for owner in "abcde":
        await ring.current(owner)
    assert [owner for owner in "abcde" if ring.known(owner)] == ["c", "d", "e"]


async def test_no_key_is_in_redis_or_a_repr(redis: Redis) -> None:
    ring = keyring(redis)
    await ring.current("ann")
    assert repr(ring) == f"<Keyring of 'box', master key {FileKey([FIRST]).id}>"
    stored = str(await redis.hgetall(ANN))
    wrapped = (await ring.owners())[0].wrapped[1]
    for secret in (FIRST, await FileKey([FIRST]).unwrap(wrapped, b"dek|ann|1")):
        assert str(secret)[2:-1] not in stored


def test_the_names_of_its_keys_are_those_of_the_namespace() -> None:
    assert {*map(KEYS.owns, (KEYS.key_owners, ANN, KEYS.owner_keys("")))} == {True}
    assert (KEYS.kinds[KEYS.key_owners], KEYS.key_changes in KEYS.kinds) == ("zset", False)
