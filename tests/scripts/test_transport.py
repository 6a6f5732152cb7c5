"""The scripts of transport one by one, and ``Transfer``, which keeps several batches in flight."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import BusyLoadingError, ConnectionError, ResponseError, TimeoutError

from penstock.base.errors import Fenced, Refused, TargetLost
from penstock.core.once import (
    SCRIPT_MESSAGES,
    Dead,
    Last,
    ListHop,
    Outgoing,
    Shipment,
    Transfer,
    catch_up,
    digest_of,
    next_messages,
    refused,
    settle,
)
from penstock.core.raw_connection import Packed, RawConnection
from penstock.core.script import LUA, Script
from tests.support.harness import PATIENCE

arrive, meet = Script.read(LUA / "arrive.lua"), Script.read(LUA / "meet.lua")
BINARY = [b"", b"\0", bytes(range(256)), b"\xff\xfe", b"*1\r\n"]
COUNTERS = ("taken", "settled", "missing", "delivered", "dead", "dropped")
METRICS = {name: f"m:{name}" for name in COUNTERS} | {"holds": "m:held"}


def numbered(count: int, first: int = 1) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def held(redis: Any, name: str) -> list[bytes]:
    """Return the messages of a list, oldest first."""
    found: list[bytes] = await redis.lrange(name, 0, -1)
    return found[::-1]


# Scripts of the source


async def prepared(redis: Any, waiting: int, pending: int = 0, sequence: int = 0) -> None:
    """Write ``pending`` taken and ``waiting`` other messages, numbered on from ``sequence`` settled ones."""
    await redis.hset("state", mapping={"source": "me", "sequence": sequence})
    await redis.hset("lease", "token", 7)
    for name, messages in (
        ("pending", numbered(pending, sequence + 1)),
        ("in", numbered(waiting, sequence + pending + 1)),
    ):
        if messages:
            await redis.lpush(name, *messages)


async def asked_for(redis: Any, first: int = 1, **more: Any) -> Any:
    named = {"pending": "pending", "source": "in", "state": "state", "lease": "lease", "token": 7, "who": "me"}
    how: dict[str, Any] = {"next": first, "batch": 5_000, "bytes": 2**20, "whole": 0, "settled": "", "most": 0}
    how |= {"unseen": 32, "largest": 3}
    return await next_messages(redis, **{**named, **how, **more})


async def take(redis: Any, first: int = 1, **more: Any) -> Any:
    """Return the messages only."""
    found = await asked_for(redis, first, **more)
    return found and found[0]


async def settled(redis: Any, sequence: int, buried: list[Dead] | None = None, **more: Any) -> Any:
    named: dict[str, Any] = {"pending": "pending", "state": "state", "lease": "lease", "token": 7, "who": "me"}
    named |= METRICS | {"letters": "letters", "origin": "in", "out": "out", "sequence": sequence}
    named["buried"] = [word for letter in buried or [] for word in letter]
    return await settle(redis, **{**named, **more})


@pytest.mark.parametrize(("pending", "waiting"), [(0, 3), (3, 0), (2, 3), (0, 5_000), (700, 4_000), (1, 1)])
async def test_messages_come_oldest_first_from_pending_and_then_from_in(
    redis: Redis, pending: int, waiting: int
) -> None:
    await prepared(redis, waiting, pending, sequence=40)
    messages = numbered(pending + waiting, 41)
    assert await take(redis, 41) == messages
    assert await held(redis, "pending") == messages
    assert not await redis.exists("in")


@pytest.mark.parametrize("batch", [1, 2, 127, 128, 129, 1_000])
async def test_a_batch_is_limited_and_the_next_follows(redis: Redis, batch: int) -> None:
    await prepared(redis, waiting=1_000, pending=1_000)
    found: list[bytes] = []
    while messages := await take(redis, len(found) + 1, batch=batch):
        assert len(messages) <= batch
        found += messages
    assert found == numbered(2_000)


@pytest.mark.parametrize("pending", [0, 1, 3])
async def test_a_backlog_becomes_pending_at_once_if_it_may(redis: Redis, pending: int) -> None:
    await prepared(redis, waiting=100, pending=pending, sequence=40)
    await redis.expire("in", 1_000)
    assert await take(redis, 41 + pending, batch=10, whole=1) == numbered(10, 41 + pending)
    assert await held(redis, "pending") == numbered(100 + pending, 41)
    assert not await redis.exists("in")
    assert await redis.ttl("pending") == -1


@pytest.mark.parametrize(("pending", "unsent", "whole"), [(3, 0, 0), (13, 0, 1), (30, 10, 1), (3, 3, 0)])
async def test_otherwise_only_as_many_as_are_taken_become_pending(
    redis: Redis, pending: int, unsent: int, whole: int
) -> None:
    """If it may not, if much is in flight, or if there is enough for this batch."""
    await prepared(redis, waiting=100, pending=pending)
    first = pending - unsent + 1
    assert await take(redis, first, batch=10, whole=whole) == numbered(10, first)
    assert await held(redis, "pending") == numbered(max(pending, first + 9))
    assert await held(redis, "in") == numbered(100 + pending - max(pending, first + 9), max(pending, first + 9) + 1)


async def test_it_says_how_many_of_the_next_are_small_enough_to_be_read_past_the_script(redis: Redis) -> None:
    await prepared(redis, waiting=0, pending=1_000)
    how = {"batch": 0, "bytes": 900, "settled": 0}
    assert [(await asked_for(redis, **how, most=most))[1] for most in (0, 5, 300, 5_000)] == [0, 5, 300, 300]
    assert (await asked_for(redis, 910, **how, most=500))[1] == 91
    assert (await asked_for(redis, batch=10, most=5))[1] == -1  # it has read enough this time
    for size, seen in (90, 10), (8_193, 0):
        for place in range(-300, -292):  # it looks at one of these
            await redis.lset("pending", place, "x" * size)
        assert [(await asked_for(redis, **how, most=most))[1] for most in (5, 100, 990)] == [5, 100, seen]


async def test_after_a_large_message_one_is_read_past_the_script(redis: Redis) -> None:
    await prepared(redis, waiting=0, pending=1_000)
    how = {"bytes": 900, "most": 300, "unseen": 1, "batch": 10}
    assert (await asked_for(redis, **how))[1] == 0
    await redis.lset("pending", -10, "x" * 300)
    assert (await asked_for(redis, **how))[1] == 1
    assert (await asked_for(redis, 11, **how, settled=0)) == [1, 1]


async def test_a_read_past_the_script_learns_whether_the_positions_were_right(redis: Redis) -> None:
    await prepared(redis, waiting=5, pending=10, sequence=40)
    right = {"settled": 40, "batch": 4, "most": 3}
    assert await asked_for(redis, 43, **right) == [1, 3]
    assert await asked_for(redis, 47, **right) == [1, 0]
    for first, more in (48, {}), (43, {"settled": 39}), (43, {"batch": 9}):
        assert await asked_for(redis, first, **{**right, **more}) == [0, 0]
    assert await asked_for(redis, 43, **right, who="another") is None
    with pytest.raises(Fenced):
        await asked_for(redis, 43, **right, token=6)
    assert (await held(redis, "pending"), await held(redis, "in")) == (numbered(10, 41), numbered(5, 51))


@pytest.mark.parametrize("unseen", [1, 32])
async def test_messages_are_taken_from_a_full_server(
    redis: Redis, fill: Callable[[], Awaitable[object]], unseen: int
) -> None:
    await prepared(redis, waiting=3, pending=1)
    await fill()
    assert await take(redis, unseen=unseen) == numbered(4)
    assert await held(redis, "pending") == numbered(4)


async def test_any_bytes_are_taken_as_they_are(redis: Redis) -> None:
    await prepared(redis, waiting=0)
    await redis.lpush("in", *BINARY)
    assert await take(redis) == BINARY


async def test_nothing_waiting_differs_from_something_missing(redis: Redis) -> None:
    await prepared(redis, waiting=0, pending=3)
    assert await take(redis, 4) == []
    assert await take(redis, 5) is None
    await prepared(redis, waiting=0, sequence=2)
    assert await take(redis, 2) is None


@pytest.mark.parametrize("move", [take, lambda redis, **more: settled(redis, 2, **more)], ids=["next", "settle"])
async def test_only_the_sender_moves_messages(redis: Redis, move: Callable[..., Any]) -> None:
    await prepared(redis, waiting=2, pending=2)
    for token in (6, 8):
        with pytest.raises(Fenced, match="lease"):
            await move(redis, token=token)
    assert await move(redis, who="another") is None
    await redis.delete("state")
    assert await move(redis) is None
    assert await held(redis, "pending") == numbered(2)
    assert await held(redis, "in") == numbered(2, 3)
    assert not await redis.exists("state", *(METRICS[name] for name in COUNTERS[1:]))


async def test_what_has_arrived_is_forgotten_and_counted_once(redis: Redis) -> None:
    await prepared(redis, waiting=2, pending=5, sequence=10)
    assert [await settled(redis, number) for number in (13, 13, 12, 9)] == [3, 0, 0, 0]
    assert await held(redis, "pending") == numbered(2, 14)
    assert await redis.hgetall("state") == {b"source": b"me", b"sequence": b"13"}
    assert await redis.hgetall(METRICS["taken"]) == {b"count": b"5", b"out": b"3"}
    assert await redis.hgetall(METRICS["settled"]) == {b"count": b"3"}
    assert await redis.hgetall(METRICS["delivered"]) == {b"count": b"3", b"out": b"3"}
    assert await redis.hgetall(METRICS["holds"]) == {b"pending": b"2"}


async def test_more_than_is_pending_is_not_settled(redis: Redis) -> None:
    await prepared(redis, waiting=2, pending=2)
    assert await settled(redis, 3) is None
    assert await held(redis, "pending") == numbered(2)


async def test_those_that_never_arrive_are_dead_letters_or_dropped_in_the_same_step(redis: Redis) -> None:
    await prepared(redis, waiting=0, sequence=10)
    messages = [b"a", b"\xff\0", b"c", b"d", b"e"]
    await redis.lpush("pending", *messages)
    dead = [Dead(12, "bad", "it is"), Dead(13, "gone", ""), Dead(15, "bad", "it is, too")]
    for expected in (5, 0):
        assert await settled(redis, 15, dead) == expected
    letters = await held(redis, "letters")
    assert [b'"\xff\\u0000"' in letters[0], b'"message":"e"' in letters[1], len(letters)] == [True, True, 2]
    assert all(b'"reason":"bad"' in letter and b'"source":"in"' in letter for letter in letters)
    counts = {name: int(await redis.hget(METRICS[name], "count") or 0) for name in COUNTERS}
    assert counts == {"taken": 5, "settled": 5, "missing": 0, "delivered": 2, "dead": 2, "dropped": 1}


# Scripts of the target


async def asked(redis: Any, token: int = 7, ledger: str = "ledger") -> list[Any]:
    found: list[Any] = await meet(redis, ledger=ledger, token=token)
    return found


async def sent(redis: Any, first: int, last: int, token: int = 7, messages: list[bytes] | None = None) -> Any:
    going = numbered(last - first + 1, first) if messages is None else messages
    named = {"out": "out", "ledger": "ledger", "token": token, "digest": f"of {first} to {last}", "messages": going}
    return await arrive(redis, first=first, last=last, **named)


async def test_a_batch_of_which_nothing_goes_arrives_all_the_same(redis: Redis) -> None:
    await asked(redis)
    assert await sent(redis, 1, 3, messages=[]) == 3
    assert await sent(redis, 4, 4) == 4
    assert await held(redis, "out") == [b"4"]


@pytest.fixture
async def there(redis: Redis) -> AsyncIterator[ListHop]:
    wire = RawConnection(redis)
    hop = ListHop(wire, "out", "me")
    await hop.meet(7)
    yield hop
    await wire.close()


async def answer_to(there: ListHop, first: int, last: int, messages: list[bytes] | None = None) -> int:
    going = Packed.of(numbered(last - first + 1, first) if messages is None else messages)
    await there.send(first, going)
    return await there.arrived()


ODD_SIZES = [
    BINARY * 100,
    [b"x" * size for size in range(SCRIPT_MESSAGES + 1)],
    [b"", *numbered(1_000)],
    [b"y" * 5_000] * 200,
]


@pytest.mark.parametrize("messages", ODD_SIZES)
async def test_many_messages_of_any_bytes_arrive_behind_those_that_are_there(
    redis: Redis, there: ListHop, messages: list[bytes]
) -> None:
    await redis.lpush("out", b"before")
    await redis.expire("out", 1_000)
    assert await answer_to(there, 1, len(messages), messages) == len(messages)
    assert await held(redis, "out") == [b"before", *messages]
    assert await redis.ttl("out") > 900


async def test_a_reader_that_waits_gets_the_first_of_many(redis: Redis, there: ListHop) -> None:
    async with redis.client() as other:
        reader: Any = other
        waiting = asyncio.create_task(reader.brpop(["out"], timeout=PATIENCE))
        while (await redis.info("clients"))["blocked_clients"] == 0:
            await asyncio.sleep(0.01)
        assert await answer_to(there, 1, 300) == 300
        assert await waiting == (b"out", b"1")
    assert await held(redis, "out") == numbered(299, 2)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("out", "out holds a string, expected a list"),
        ("out:from:me", "out:from:me holds a string, expected a hash"),
        ("out:from:me:door", "out:from:me:door holds a string, expected nothing"),
    ],
)
async def test_many_messages_are_refused_where_something_is_in_the_way(
    redis: Redis, there: ListHop, key: str, said: str
) -> None:
    if key.endswith("door"):
        await redis.lpush("out", b"before")
    await redis.set(key, "in the way")
    with pytest.raises(Refused, match=said):
        await answer_to(there, 1, 300)
    assert await redis.get(key) == b"in the way"
    assert set(await redis.keys()) <= {b"out:from:me", b"out", key.encode()}
    assert key == "out" or await held(redis, "out") == [b"before"] * key.endswith("door")


@pytest.mark.parametrize("others", [[], [b"before"]])
async def test_many_messages_of_another_sender_are_refused(redis: Redis, there: ListHop, others: list[bytes]) -> None:
    if others:
        await redis.lpush("out", *others)
    await asked(redis, 8, "out:from:me")
    with pytest.raises(Fenced):
        await answer_to(there, 1, 300)
    assert await held(redis, "out") == others
    assert set(await redis.keys()) <= {b"out:from:me", b"out"}


@pytest.mark.parametrize(
    "said",
    [
        "not allowed.",
        "not allowed. script: e872a0b8, on @user_script:31.",
        "not allowed. script: on @user_script:31.",
        *(
            f"Error running script (call to f_e872a0b8): @user_script:31: @user_script: 31: {code}not allowed."
            for code in ("", "-OOM ", "-READONLY ")
        ),
    ],
    ids=["no script", "Redis 7", "Valkey", *(f"Redis 6.2{code}" for code in ("", " full", " read-only"))],
)
def test_a_refusal_is_reported_without_the_place_in_a_script(said: str) -> None:
    assert str(refused(ResponseError(said))) == "the other server: not allowed."


@pytest.mark.parametrize("right", ["-renamenx", "-rpush", "-rpop", "-lpushx", "-hset", "-evalsha", "-exec"])
async def test_many_messages_are_refused_as_a_whole_where_a_right_is_missing(redis: Redis, right: str) -> None:
    await redis.lpush("out", b"before")
    wire = RawConnection(redis)
    there = ListHop(wire, "out", "me")
    await there.meet(7)
    await redis.execute_command("ACL", "SETUSER", "default", *right.split())
    try:
        with pytest.raises(Refused, match=r"(?i)no permission|previous errors|server: the user executing"):
            await answer_to(there, 1, 300)
        assert await held(redis, "out") == [b"before"]
        assert await redis.hget("out:from:me", "sequence") is None
    finally:
        await redis.execute_command("ACL", "SETUSER", "default", "+@all")
        await wire.close()
    assert b"out:from:me:door" not in await redis.keys()


async def test_without_the_right_to_a_transaction_nothing_is_sent(redis: Redis) -> None:
    """Without MULTI, its parts would be executed one by one."""
    wire = RawConnection(redis)
    await redis.execute_command("ACL", "SETUSER", "default", "-multi")
    try:
        with pytest.raises(Refused, match=r"(?i)no permission"):
            await ListHop(wire, "out", "me").meet(7)
    finally:
        await redis.execute_command("ACL", "SETUSER", "default", "+@all")
        await wire.close()


async def test_many_messages_are_refused_as_a_whole_by_a_full_server(redis: Redis, there: ListHop) -> None:
    await redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(Refused, match="used memory"):
            await answer_to(there, 1, 300)
    finally:
        await redis.config_set("maxmemory", 0)
    assert await redis.keys() == [b"out:from:me"]
    assert await answer_to(there, 1, 300) == 300


# Transfer


@dataclass
class MemorySource:
    """A source in memory that ends when no message is left."""

    messages: list[bytes]
    batch: int = 10
    settled: int = 0
    dead: list[Dead] = field(default_factory=list)
    takes: list[int] = field(default_factory=list)

    async def take(self, first: int) -> list[bytes]:
        self.takes.append(first)
        await asyncio.sleep(0)
        return self.messages[first - 1 : first - 1 + self.batch]

    async def settle(self, last: int, dead: list[Dead]) -> None:
        assert last > self.settled
        await asyncio.sleep(0)
        self.settled = last
        self.dead += dead

    async def wait(self, first: int) -> list[bytes] | None:
        return None


def transfer(here: MemorySource, there: ListHop, window: int = 5, window_bytes: int = 2**30, **more: Any) -> Transfer:
    return Transfer(here, there, max_batches=window, max_bytes=lambda: window_bytes, **more)


@pytest.mark.parametrize(
    ("count", "window", "batch"),
    [
        (0, 5, 10),
        (1, 1, 10),
        (10, 5, 10),
        (11, 1, 10),
        (1_234, 5, 10),
        (1_234, 10_000, 10),
        (1_234, 5, SCRIPT_MESSAGES * 3),
    ],
)
async def test_everything_arrives_in_order_and_is_settled(
    redis: Redis, there: ListHop, count: int, window: int, batch: int
) -> None:
    here = MemorySource(numbered(count), batch)
    await transfer(here, there, window).run(0)
    assert await held(redis, "out") == here.messages
    assert here.settled == count


class HeldBackHop(ListHop):
    """A way whose replies are held back until ``go_on`` is set."""

    def __init__(self, wire: RawConnection, *rest: Any) -> None:
        super().__init__(wire, *rest)
        self.open, self.most = 0, 0
        """Unconfirmed batches, now and at most."""
        self.go_on = asyncio.Event()

    async def send(self, first: int, messages: Packed, *rest: Any) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        await super().send(first, messages, *rest)

    async def arrived(self) -> int:
        await self.go_on.wait()
        self.open -= 1
        return await super().arrived()


@pytest.mark.parametrize(
    ("window", "window_bytes", "most"), [(1, 2**30, 1), (4, 2**30, 4), (1_000, 1, 1), (1_000, 500, 9)]
)
async def test_no_more_than_the_window_is_on_the_way(redis: Redis, window: int, window_bytes: int, most: int) -> None:
    wire = RawConnection(redis)
    there = HeldBackHop(wire, "out", "me")
    await there.meet(7)
    here = MemorySource([b"x" * 12] * 1_000, batch=3)
    work = asyncio.create_task(transfer(here, there, window, window_bytes).run(0))
    while there.open < most:
        await asyncio.sleep(0)
    there.go_on.set()
    await work
    await wire.close()
    assert most <= there.most <= most + 1
    assert await redis.llen("out") == 1_000


async def test_an_order_to_end_stops_sending_and_what_was_sent_is_settled(redis: Redis, there: ListHop) -> None:
    here = MemorySource(numbered(1_000))
    seen: list[Shipment] = []
    await transfer(here, there, on_arrival=seen.append, keep_going=lambda: len(seen) < 3).run(0)
    arrived = await held(redis, "out")
    assert arrived == here.messages[: len(arrived)]
    assert 30 <= here.settled == len(arrived) < 1_000
    assert [(batch.first, batch.last) for batch in seen][:2] == [(1, 10), (11, 20)]


async def test_what_is_prepared_arrives_in_place_of_the_messages(redis: Redis, there: ListHop) -> None:
    def odd_ones(first: int, messages: list[bytes], size: int) -> Outgoing:
        dead = [Dead(number, "even", "it is") for number, _ in enumerate(messages, first) if number % 2 == 0]
        return Outgoing([message for message in messages if int(message) % 2], dead)

    here = MemorySource(numbered(95))
    await transfer(here, there, encode=odd_ones).run(0)
    assert await held(redis, "out") == [b"%d" % number for number in range(1, 96, 2)]
    assert [letter.number for letter in here.dead] == list(range(2, 95, 2))
    assert here.settled == 95


async def refusal_of(work: Any) -> BaseException:
    """Return the only error of a group of tasks."""
    with pytest.raises(ExceptionGroup) as group:
        await asyncio.create_task(work)  # Python 3.11 leaves the task of a group cancelled
    (error,) = group.value.exceptions
    return error


async def test_a_script_that_the_server_has_forgotten_is_a_refusal_and_is_there_again_after_meeting(
    redis: Redis, there: ListHop
) -> None:
    await redis.script_flush()
    here = MemorySource(numbered(100))
    assert str(await refusal_of(transfer(here, there).run(0))).startswith("the other server: No matching script")
    assert (await held(redis, "out"), here.settled) == ([], 0)
    wire = RawConnection(redis)
    again = ListHop(wire, "out", "me")
    await again.meet(8)
    await transfer(here, again).run(0)
    await wire.close()
    assert await held(redis, "out") == here.messages


async def test_another_sender_ends_it(redis: Redis, there: ListHop) -> None:
    wire = RawConnection(redis)
    await ListHop(wire, "out", "me").meet(8)
    await wire.close()
    error = await refusal_of(transfer(MemorySource(numbered(100)), there).run(0))
    assert isinstance(error, Fenced)
    assert str(error) == "the other server: out:from:me"


async def test_a_gap_is_reported(there: ListHop) -> None:
    error = await refusal_of(transfer(MemorySource(numbered(100)), there).run(50))
    assert isinstance(error, Refused)
    assert str(error) == "the other server has 0 messages where 60 were expected"


@pytest.mark.parametrize("kind", [ConnectionError, BusyLoadingError, TimeoutError])
@pytest.mark.parametrize("step", ["send", "receive"])
async def test_trouble_with_the_connection_says_that_it_is_the_other_server_and_stays_of_its_type(
    redis: Redis, monkeypatch: pytest.MonkeyPatch, step: str, kind: type[Exception]
) -> None:
    async def cut(*_: object) -> None:
        raise kind("cut")

    wire = RawConnection(redis)
    there = ListHop(wire, "out", "me")
    await there.meet(7)
    monkeypatch.setattr(wire, step, cut)
    error = await refusal_of(transfer(MemorySource(numbered(100)), there).run(0))
    assert (type(error), str(error)) == (kind, "the other server: cut")
    with pytest.raises(kind, match="the other server: cut"):
        await there.meet(7)
    await wire.close()


# Agreement at the start of a run


def arrived(messages: list[bytes], last: int, first: int) -> Last:
    return Last(7, last, first, digest_of(Packed(messages[first - 1 : last])))


async def test_a_target_that_has_less_than_was_settled_is_detected() -> None:
    with pytest.raises(TargetLost, match="the other server has 25 messages of ours, of 26 that had arrived"):
        await catch_up(MemorySource(numbered(40)), arrived(numbered(40), 25, 21), 26)


@pytest.mark.parametrize("unseen", [1, 32])
@pytest.mark.parametrize("size", [1, 10, 1_000])
async def test_a_batch_ends_with_the_message_that_makes_it_large_enough(redis: Redis, size: int, unseen: int) -> None:
    await redis.hset("state", "source", "me")
    await redis.hset("lease", "token", 7)
    messages = [b"x" * (size * number % 97) for number in range(300)]
    await redis.lpush("in", *messages)
    found: list[bytes] = []
    while batch := await take(redis, len(found) + 1, bytes=500, unseen=unseen, largest=96):
        assert sum(map(len, batch[:-1])) < 500
        found += batch
    assert found == messages
