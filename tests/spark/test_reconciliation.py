"""Reconciliation finds missing, duplicated, in-flight and not yet archived messages, and nothing else."""

import time
from collections.abc import Awaitable, Callable
from hashlib import sha1
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from redis.asyncio import Redis

from penstock.base.errors import NoArchive
from penstock.spark.reconciliation import Reconciliation, reconcile
from penstock.tracking.correlation import correlation_of
from penstock.tracking.dead_letters import LetterFilter
from penstock.tracking.redrive import RedriveResult, revive
from services.mdispatch.request import parse_request
from tests.spark import SparkSession
from tests.spark.archives import FAN, Lane, archive, counters, keep
from tests.support.hop import Hop
from tests.support.tracked import write

Reconcile = Callable[..., Awaitable[Reconciliation]]
LEFT: Final = "t:mpush -> t:left:in -> t:left"


@pytest.fixture
def reconciled(spark: "SparkSession", redis: Redis, tmp_path: Path) -> Reconcile:
    """Reconcile the archive in ``tmp_path``, without waiting for it."""

    async def found(*namespaces: str, live: bool = False, patience: float = 0) -> Reconciliation:
        return await reconcile(redis, spark, str(tmp_path), namespaces, live=live, patience=patience)

    return found


async def lay(redis: Redis, place: Path, *lanes: Lane, given: int) -> None:
    """Write the counters of ``lanes`` and archive their events."""
    await counters(redis, *lanes, given=given)
    for lane in lanes:
        archive(place, lane.keys.namespace, lane.columns())


def findings(found: Reconciliation) -> list[tuple[str, str, str, str]]:
    return [(each.kind, each.where, each.id, each.xid) for each in found.findings]


def words(found: Reconciliation) -> list[str]:
    return [f"{each.where}: {each.words}" for each in found.findings]


async def test_of_a_million_events_one_message_missing_one_doubled_and_one_in_flight_are_named(
    redis: Redis, reconciled: Reconcile, tmp_path: Path
) -> None:
    every = np.arange(250_000)
    right = Lane("right", every, open=[4711])
    left = Lane("left", np.concatenate([np.delete(every, 77_777), [123_456]]))
    await lay(redis, tmp_path, right, left, given=250_000)
    begun = time.monotonic()
    found = await reconciled()
    print(f"{time.monotonic() - begun:.1f} s for {found.events:,} events")
    assert findings(found) == [("doubled", LEFT, "", "x123456"), ("missing", LEFT, "", "x77777")]
    assert found.findings[1].words == "missing; registered as 77778 in t:right"
    assert [(each.namespace, each.id, each.xid, each.event) for each in found.open] == [
        ("t:right", "4711", "x4710", "registered")
    ]
    assert found.events == 999_999
    rows = {leg.name: row for leg, row in zip(found.legs, found.rows(), strict=True)}
    assert [rows["t:left"][name] for name in ("accepted", "done", "in flight", "missing", "doubled")] == [
        *(250_000, 250_000, 0, 1, 1)
    ]
    assert [rows["t:right"][name] for name in ("accepted", "done", "in flight", "missing", "doubled")] == [
        *(250_000, 249_999, 1, 0, 0)
    ]


class Shop:
    """A fan-out of mpush to two hops, each with an mdispatch and a monitor that run step by step."""

    def __init__(self, redis: Redis, **settings: Any) -> None:
        self.redis: Any = redis
        self.left, self.right = (self._hop(name, **settings) for name in ("left", "right"))

    def _hop(self, name: str, **settings: Any) -> Hop:
        lists: dict[str, Any] = {role: f"t:{name}:{role.strip('_')}" for role in ("in_", "pending", "out", "res")}
        return Hop(self.redis, namespace=f"t:{name}", **lists, **settings)

    async def start(self) -> "Shop":
        for hop in (self.left, self.right):
            await hop.start()
            await write(self.redis, hop.keys.lists, **{hop.settings.in_: "in"})
        await write(self.redis, FAN.lists, **{hop.settings.in_: "out" for hop in (self.left, self.right)})
        return self

    async def give(self, *messages: str | bytes) -> None:
        """Deliver messages to both hops in one transaction, as mpush does."""
        async with self.redis.pipeline(transaction=True) as transaction:
            transaction.hincrby(FAN.metric("taken"), "count", len(messages))
            for hop in (self.left, self.right):
                transaction.lpush(hop.settings.in_, *messages)
                for metric in ("taken", "delivered"):
                    transaction.hincrby(FAN.metric(metric), hop.settings.in_, len(messages))
            await transaction.execute()

    async def take(self, *hops: Hop) -> None:
        """Register the waiting messages."""
        for hop in hops or (self.left, self.right):
            await hop.dispatch.take()
            await hop.dispatch.deliver()


@pytest.fixture
async def shop(redis: Redis) -> Shop:
    return await Shop(redis, message_timeout=10, attempts=1).start()


async def test_every_possible_end_of_messages_is_accounted_for(
    shop: Shop, redis: Redis, redis_url: str, reconciled: Reconcile, tmp_path: Path
) -> None:
    left, right = shop.left, shop.right
    await shop.give("1", "again", "again", "2", "fails", '{"meta": {"id": "held", "delay": 60}}', "3")
    await shop.give('{"meta": {"id": "bad", "delay": -1}}')  # refused as a bad request
    await shop.take()
    await left.push_done(
        "again", "1", {"xid": "fails", "error": "no", "retry": False}, {"xid": "2", "touch": 30}, "nobody"
    )
    await left.sweep()
    await right.push_done("1")
    await right.advance(10)
    await right.sweep()  # the others die
    await right.push_done("2", "3")  # late: these are dead
    await redis.delete(left.keys.message("7"))
    await left.advance(10)
    await left.sweep()  # 7 expires, others die
    await revive(redis, right.keys, LetterFilter(reason="timeout"), RedriveResult(), lambda _: None)
    await shop.take(right)
    await right.push_done("again")
    await revive(
        redis, left.keys, LetterFilter(ids=frozenset({"2"})), RedriveResult(), lambda _: None
    )  # redriven, and waiting
    keep(redis_url, tmp_path)
    found = await reconciled()
    assert words(found) == []
    rows = {leg.name: row for leg, row in zip(found.legs, found.rows(), strict=True)}
    for row in rows.values():
        *came, waits = (row[name] for name in ("accepted", "revived", "doubled"))
        assert sum(came) + waits == sum(row[name] for name in row if name not in ("accepted", "revived", "doubled"))
    assert [rows["t:left"][name] for name in ("accepted", "revived", "expired", "waiting", "refused")] == [
        8,
        1,
        1,
        1,
        1,
    ]
    assert (rows["t:right"]["revived"], rows["t:right"]["missing"], rows["t:right"]["doubled"]) == (5, 0, 0)
    assert [found.books.tracked["t:right"].count("done:late", name) for name in ("count", "completed")] == [2, 0]


async def test_a_message_taken_away_by_hand_is_named_among_those_that_wait(
    shop: Shop, redis: Redis, redis_url: str, reconciled: Reconcile, tmp_path: Path
) -> None:
    await shop.give(*map(str, range(100, 160)), "twice", "twice")
    await shop.take(shop.right)
    assert await redis.rpop(shop.left.settings.in_) == b"100"
    keep(redis_url, tmp_path)
    unnamed = await reconciled()
    assert len(unnamed.findings) == 61
    assert unnamed.findings[0].words.startswith("missing: one of 62 that have not come, of which 1 are missing")
    found = await reconciled(live=True)
    assert words(found) == [f"{LEFT}: missing; registered as 1 in t:right"]
    assert found.findings[0].xid == "100"
    await shop.take(shop.left)
    assert findings(await reconciled(live=True)) == [
        ("behind", "t:left", "", ""),
        ("missing", LEFT, "", "100"),
    ]


def less(columns: dict[str, Any], *places: int) -> dict[str, Any]:
    """Return ``columns`` without the events at ``places``; the others keep their numbers."""
    kept = np.setdiff1d(np.arange(len(columns["id"])), np.array(places) - 1)
    whole = columns | {"number": np.arange(1, len(columns["id"]) + 1)}
    return {name: pa.array(column).take(kept) for name, column in whole.items()}


async def test_every_other_mismatch_is_reported_and_nothing_more(
    redis: Redis, reconciled: Reconcile, tmp_path: Path
) -> None:
    ten = np.arange(10)
    lanes = {name: Lane(name, ten) for name in ("behind", "counted", "holes", "never", "reborn", "silent", "twice")}
    lanes["ended"] = Lane("ended", ten, more=[("done", 3)])
    lanes["gone"] = Lane("gone", ten, open=[7])
    lanes["shrunk"] = Lane("shrunk", ten, open=[7])
    lanes["ahead"] = Lane("ahead", ten)
    await counters(redis, *lanes.values())
    lanes["ahead"].more.append(("done", 3))  # written after the counters were read
    for name, lane in lanes.items():
        columns = lane.columns()
        shown = {"holes": less(columns, 4, 5, 9), "behind": less(columns, 18, 19, 20)}.get(name, columns)
        if name not in ("never", "silent"):
            archive(tmp_path, f"t:{name}", shown)
    again = {name: column[2:4] for name, column in lanes["twice"].columns().items()}
    archive(tmp_path, "t:twice", again, batch="b-0", first=3)
    archive(tmp_path, "t:reborn", again | {"entry": ["1-1", "1-2"]}, batch="b-0", first=3)
    archive(tmp_path, "t:foreign", again)
    await redis.zrem("t:gone:message:deadlines", "7")
    await redis.zadd("t:shrunk:message:deadlines", {"99": 2e9})
    await redis.hincrby("t:counted:metrics:done", "count", -1)
    await redis.hset("t:counted:metrics:retry", "count", "many")
    await redis.delete("t:silent:metrics:events")
    assert sorted(words(await reconciled())) == [
        "t:behind: not archived yet: 3 events; wait until the pipeline has them, and ask again",
        "t:counted -> out: 1 have not ended and are not under way: --live names them",
        "t:counted: done: 10 in the archive, 9 counted",
        "t:counted: retry: count is 'many', expected a whole number",
        "t:ended -> out: 1 more are under way than can be: --live names them",
        "t:ended -> out: doubled: registered 1 times, done 2 times",
        "t:foreign: no mdispatch has registered in it on this server, and the archive has 2 events of it",
        "t:gone -> out: missing: it has not ended, and is neither in flight nor delayed",
        "t:holes: event 9 is not in the archive, and later ones are",
        "t:holes: events 4 to 5 are not in the archive, and later ones are",
        "t:never: none of its 20 events is archived: does a pipeline watch it?",
        "t:reborn: events 3 to 4 are in the archive 2 times, in a-0, b-0, and are not the same: "
        "the server has lost its counters, or two servers share the archive",
        "t:shrunk -> out: 1 more are under way than can be: --live names them",
        "t:silent: it tells no events (eventCapacity is 0), so none can be archived",
        "t:twice: events 3 to 4 are in the archive 2 times, in a-0, b-0",
    ]
    found = await reconciled("t:gone", "t:shrunk", live=True)
    assert findings(found) == [("missing", "t:gone -> out", "7", "x6"), ("stray", "t:shrunk -> out", "99", "")]


async def test_an_empty_archive_is_reported(reconciled: Reconcile, redis: Redis) -> None:
    with pytest.raises(NoArchive, match="there is no archive; expected the directory that a pipeline writes"):
        await reconciled()


def test_messages_that_wait_are_called_what_mdispatch_calls_them() -> None:
    for message, xid in (
        (b"0012", b"12"),
        (b'{"meta": {"id": "a"}}', b"a"),
        (b'{"meta": {"id": 7, "delay": 1}}', b"7"),
        (b'{"meta": []}', None),
        (b"\xff", None),
    ):
        assert (
            parse_request(message, lambda _: None).xid
            == correlation_of(message).xid
            == (xid or sha1(message).hexdigest().encode())
        )
