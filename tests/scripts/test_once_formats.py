"""What the last release has stored of messages on their way: the new code goes on with it, and stores the same.

The literals are what the last release wrote. Of six messages it had settled two, and two more had arrived.
"""

import asyncio
import re
from pathlib import Path
from typing import Any, Final, cast

import pytest
from redis.asyncio import Redis

from common.context import Context
from penstock.base.errors import Fenced
from penstock.bus import Bus
from penstock.bus.fallback import QueueHop
from penstock.core.once import Last, Sender, agree
from penstock.core.raw_connection import Packed, RawConnection
from penstock.transfer.move import Move
from services.outbox.sending import Note, Sending
from services.outbox.settings import Settings
from services.vpush.local_source import LocalSource
from services.vpush.window import SendWindow
from tests.outbox.outboxes import outbox
from tests.support.harness import PATIENCE, eventually
from tests.support.in_process import context_of, running
from tests.support.vpush import made

VPUSH, SHOVEL, BUS, OUTBOX = (
    "06431fa193e74f9ca5f750443a54eae1",
    "bcee36c9cbde4466b2d153ea85fe57f6",
    "67d791f5cc6f5996915a65d7b639f00c",
    "d1be812019ac4d7e93f41b7b990478ad",
)
"""The source ids."""
DIGESTS: Final = "e2e1db40fb9eca57f7708a7342c43d1c8fde71b4", "e3e1c81601a7154cd6064e8c58096116794e1875"
"""Of c and d, and of e and f."""
ARRIVED: Final = {"sequence": "4", "first": "3", "digest": DIGESTS[0], "at": "1795956329"}
HELD, HASH = ["f", "e", "d", "c"], "in:shovel:a5478efbd73c"
STORED: Final[dict[str, dict[str, Any]]] = {
    "vpush": {
        "demo:lease": {"owner": "1", "token": "7", "expires": "9999999999999"},
        "demo:held": {"pending": "4"},
        "demo:sequence": {"source": VPUSH, "sequence": "2"},
        "pending": HELD,
        "out": ["d", "c", "b", "a"],
        f"out:from:{VPUSH}": {"token": "7", **ARRIVED},
    },
    "shovel": {
        "in": HELD[:2],
        HASH: HELD[2:],
        f"{HASH}:sequence": {
            "source": SHOVEL,
            "token": "296113172543068",
            "to": "redis://there:6379 out",
            "sequence": "2",
        },
        "out": ["d", "c", "b", "a"],
        f"out:from:{SHOVEL}": {"token": "296113172543068", **ARRIVED},
    },
    "bus": {
        "bus:queue:orders:ledger": {BUS: "1 1516643854429350 1795956329"},
        "bus:queue:orders:messages": ["1", "a", "2", "b"],
        "bus:queue:orders:metadata": {"ttl": "60", "source": "local", "discover": "false", "maxsize": "0"},
        "bus:queue:orders:msgid": "2",
    },
    "outbox": {
        "site:lease": {"token": "7"},
        "site:held": {"pending": "3"},
        "site:sequence": {"source": OUTBOX, "sequence": "1"},
        "pending": ['{"k":"rain"}', "none", '{"k":"snow"}'],
    },
}
NOTE: Final = (
    '[1, 3, "379c24221ad865592f9fa6deb1545fa2dbcf7e12", [[1, "noSubscriber"], [2, "noKey"], [3, "noSubscriber"]], 0]'
)


async def store(redis: Any, keys: dict[str, Any]) -> None:
    for key, value in keys.items():
        if isinstance(value, dict):
            await redis.hset(key, mapping=value)
        elif isinstance(value, list):
            await redis.rpush(key, *value)
        else:
            await redis.set(key, value)


@pytest.mark.parametrize("kind", ["vpush", "shovel"])
async def test_messages_on_their_way_to_a_list_arrive_once_and_are_numbered_on(redis: Any, kind: str) -> None:
    await store(redis, STORED[kind])
    context = context_of(redis, made(batch=2))
    context.token = 7
    source, state, sender = VPUSH, "demo:sequence", cast(Sender, LocalSource(context, SendWindow()))
    if kind == "shovel":
        source, state, sender = SHOVEL, f"{HASH}:sequence", Move(redis, b"in", redis, "out", "redis://there:6379")
    wire = RawConnection(redis)
    hop, settled = await agree(sender, wire, "out")
    messages = await sender.take(settled + 1)
    await hop.send(settled + 1, Packed.of(messages))
    assert (settled, messages, await hop.arrived()) == (4, [b"e", b"f"], 6)
    await sender.settle(6, [])
    assert await redis.lrange("out", 0, -1) == [b"f", b"e", b"d", b"c", b"b", b"a"]
    assert not await redis.exists("in", "pending", HASH)
    ledger = {field.decode(): value.decode() for field, value in (await redis.hgetall(f"out:from:{source}")).items()}
    token, at = ledger.pop("token"), ledger.pop("at")
    assert ledger == {"sequence": "6", "first": "5", "digest": DIGESTS[1]}
    assert at.isdecimal()
    assert (await redis.hmget(state, ["source", "sequence"])) == [source.encode(), b"6"]
    holder = await redis.hget("demo:lease" if kind == "vpush" else state, "token")
    assert token.encode() == holder
    await redis.hset(f"out:from:{source}", "token", f"0{token}")
    await hop.send(7, Packed.of([b"g"]))
    with pytest.raises(Fenced):  # it is compared as text
        await hop.arrived()
    await wire.close()
    await context.reset()


async def test_messages_of_an_outbox_for_a_queue_arrive_once_and_are_numbered_on(redis: Any, redis_url: str) -> None:
    await store(redis, STORED["bus"])
    last, ledger = 1_516_643_854_429_350, "bus:queue:orders:ledger"
    async with Bus(redis_url) as bus:
        queue = bus.queue("orders")
        await queue.attach(ttl=60)
        hop = QueueHop("orders", BUS, bus._homes)
        hop.options = queue.options
        assert [await hop.meet(token) for token in (1, 2)] == [Last(1, last)] * 2
        await redis.hset(ledger, BUS, f"02 {last} 9")  # it is compared as a number
        for first, body, ids in ((last, b"b", []), (last + 1, b"c", [3])):
            await hop.send(first, Packed.of([body]))
            assert (await hop.arrived(), [*hop.ids]) == (first, ids)
        assert re.fullmatch(rb"2 %d \d{10}" % (last + 1), (await redis.hgetall(ledger))[BUS.encode()])
        await redis.hset(ledger, BUS, f"3 {last + 1} 9")
        with pytest.raises(Fenced):  # another sender has met
            await hop.send(last + 2, Packed.of([b"d"]))
    assert await redis.lrange("bus:queue:orders:messages", 0, -1) == [b"1", b"a", b"2", b"b", b"3", b"c"]


async def test_what_an_outbox_has_stored_is_only_settled_and_what_follows_is_noted_alike(
    redis: Redis, tmp_path: Path
) -> None:
    """Decided anew, two of the three would be dropped."""
    await store(redis, STORED["outbox"])
    names: dict[str, Any] = {"redis_namespace": "site", "in_": "in", "pending": "pending", "publish_field": "k"}
    settings = Settings(redis="redis://here", datadir="unused", unsubscribed="drop", pop_timeout=5, **names)

    async def until(sequence: bytes, letters: int) -> None:
        async def is_settled() -> bool:
            return await redis.hget("site:sequence", "sequence") == sequence

        await eventually(is_settled)
        assert await redis.llen("site:dead") == letters

    async with outbox(tmp_path) as one:
        await one.publish_all([], OUTBOX, NOTE)

        async def run(context: Context[Any]) -> None:
            context.token = 7
            await Sending(context, one).run()

        async with running(redis, settings, run):
            await until(b"4", letters=3)
            await redis.lpush("in", "none")
            await until(b"5", letters=4)
        assert one.note_of(OUTBOX) == '[4, 1, "900562da161c35102e16df2aab20700771a204a5", [[1, "noKey"]], 0]'


async def test_a_full_server_does_not_keep_an_outbox_that_has_stored_from_stopping(
    redis: Redis, tmp_path: Path
) -> None:
    await store(redis, STORED["outbox"])
    names: dict[str, Any] = {"redis_namespace": "site", "in_": "in", "pending": "pending", "publish_field": "k"}
    settings = Settings(redis="redis://here", datadir="unused", unsubscribed="drop", pop_timeout=5, **names)
    tries = 0

    class Counting(Sending):
        async def _settle_again(self, note: Note) -> bool:
            nonlocal tries
            tries += 1
            return await super()._settle_again(note)

    async with outbox(tmp_path) as one:
        await one.publish_all([], OUTBOX, NOTE)

        async def run(context: Context[Any]) -> None:
            context.token = 7
            await Counting(context, one).run()

        before = await redis.hget("site:sequence", "sequence")
        try:
            async with asyncio.timeout(PATIENCE), running(redis, settings, run):
                await redis.config_set("maxmemory", 1)
                await eventually(lambda: tries >= 2)
        finally:
            await redis.config_set("maxmemory", 0)
        assert await redis.hget("site:sequence", "sequence") in (before, b"4")
        assert one.note_of(OUTBOX) == NOTE, "nothing is published twice"
