"""A state machine: three clients do whatever they like with one queue, and a model says what must come of it."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from redis.asyncio import Redis

from penstock.base.errors import Fenced, Full, Gone, Occupied
from penstock.bus import Bus, Consumption, Message, Queue
from tests.bus.model import Client, Consuming, Pair, Stored
from tests.support.harness import PATIENCE, eventually

T = TypeVar("T")
TTL = 1_000
CLIENTS = st.integers(0, 2)
RARELY = st.sampled_from([False, False, False, True])
MODES: dict[str, dict[str, Any]] = {
    "taken": {},
    "reliable": {"reliable": True},
    "exclusive": {"reliable": True, "exclusive": True},
    "read": {"remove": False},
}


class Machine(RuleBasedStateMachine):
    """Three clients, two of them of one bus, with one queue; a consumption goes on step by step."""

    url: str
    fetched = 0

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.do(self.set_up())
        self.stored = Stored()
        self.bodies = 0
        for of in range(3):
            self.push(of, 2, singly=False)

    def do(self, coroutine: Awaitable[T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE):
                return await coroutine

        return self.runner.run(bounded())

    async def set_up(self) -> None:
        self.redis = Redis.from_url(self.url)
        await self.redis.flushall()
        self.buses = [await Bus(self.url, patience=30).__aenter__() for _ in range(2)]
        self.clients = [Client(self.buses[place].queue("foo")) for place in (0, 0, 1)]

    def teardown(self) -> None:
        async def leave() -> None:
            for bus in self.buses:
                await bus.disconnect()
            await self.redis.aclose()

        self.do(leave())
        self.runner.close()

    # Rules

    @rule(of=CLIENTS, maxsize=st.sampled_from([0, 5, 3]))
    def attach(self, of: int, maxsize: int) -> None:
        self.attached(of, maxsize)

    def attached(self, of: int, maxsize: int = 0) -> Client:
        client, stored = self.clients[of], self.stored
        if client.attached:
            return client
        assert self.do(client.queue.attach(ttl=TTL, maxsize=maxsize)) == stored.exists
        if not stored.exists:
            stored.exists, stored.maxsize = True, maxsize
        client.attached = True
        return client

    @rule(of=CLIENTS, many=st.integers(1, 10), singly=st.booleans())
    def push(self, of: int, many: int, singly: bool) -> None:
        client, stored = self.attached(of), self.stored
        bodies = [b"%d" % (self.bodies + place) for place in range(many)]
        self.bodies += many
        free = max(0, stored.maxsize - len(stored.messages)) if stored.maxsize else many
        ids = [stored.last_id + place for place in range(1, min(free, many) + 1)]
        try:
            found = self.do(self.push_all(client.queue, bodies, singly=singly))
        except Gone:
            assert not stored.exists
            self.lose(client)
            return
        except Full as error:
            assert free < many
            found = error.ids
        assert stored.exists
        assert found == ids
        stored.messages += zip(ids, bodies, strict=False)
        stored.last_id += len(ids)

    async def push_all(self, queue: Queue, bodies: list[bytes], *, singly: bool) -> list[int]:
        if not singly:
            return await queue.push_many(bodies)
        found = await asyncio.gather(*map(queue.push, bodies), return_exceptions=True)
        ids = [each for each in found if isinstance(each, int)]
        for each in found:
            if isinstance(each, Full):
                raise Full(str(each), ids)
            if isinstance(each, BaseException):
                raise each
        return ids

    @rule(
        of=CLIENTS,
        mode=st.sampled_from([*MODES]),
        limit=st.sampled_from([None, None, None, None, None, 0, 1, 3]),
        last=st.integers(0, 5),
        index=st.integers(0, 3),
    )
    def consume(self, of: int, mode: str, limit: int | None, last: int, index: int) -> None:
        client = self.attached(of)
        if client.consuming:
            return
        reliable = mode in ("reliable", "exclusive")
        options = MODES[mode] | ({"after_id": last} if reliable else {}) | ({"start": index} if mode == "read" else {})
        inner = client.queue.consume(limit=limit, **options)
        client.consuming = Consuming(mode, inner, limit, last, index)
        self.fetch(of)

    @rule(of=CLIENTS)
    def fetch(self, of: int) -> None:
        client, stored = self.clients[of], self.stored
        consuming = client.consuming
        if consuming is None:
            return
        self.hand_out(of, len(consuming.hand))
        if consuming.begun and consuming.mode == "reliable" and stored.holder not in (None, client):
            self.stop(of)  # an exclusive one has come: what this one gets depends on what both have acknowledged
            return
        if not consuming.begun and consuming.reliable and not stored.exists:
            with pytest.raises(Gone):
                self.do(consuming.inner.fetch())
            self.lose(client)
            return
        if not consuming.begun and consuming.reliable:
            if stored.holder not in (None, client):
                with pytest.raises(Occupied):
                    self.do(consuming.inner.fetch())
                self.stop(of)
                return
            stored.acknowledge(consuming.last)
            stored.restore(1)
            if consuming.mode == "exclusive":
                stored.holder = client
        consuming.begun = True
        if consuming.limit == 0:
            assert self.do(consuming.inner.fetch()) is False
        elif consuming.mode == "read":
            self.read(consuming)
        elif not stored.messages:
            self.do(self.fetch_nothing(consuming.inner))
        else:
            assert self.do(consuming.inner.fetch())
            many = len(stored.messages) - self.do(self.redis.llen(client.queue.keys[1])) // 2
            assert 1 <= many <= (consuming.limit or many)
            consuming.hand, stored.messages = stored.messages[:many], stored.messages[many:]
            if consuming.reliable:
                stored.toack += consuming.hand
            if consuming.limit is not None:
                consuming.limit -= many
            Machine.fetched += many

    def read(self, consuming: Consuming) -> None:
        """Fetch what stays, and take all of it."""
        messages, last = self.stored.messages, consuming.last_read
        if messages != sorted(messages):
            return
        waiting = [each for each in messages if each[0] > last] if last else messages[consuming.index :]
        if not waiting:
            self.do(self.fetch_nothing(consuming.inner))
            return
        assert self.do(consuming.inner.fetch())
        got = list[Pair]()
        while message := consuming.inner.next_taken():
            got.append((message.id, message.body))
        assert got == waiting[: len(got)]
        consuming.last_read = got[-1][0]
        if consuming.limit is not None:
            consuming.limit -= len(got)

    async def fetch_nothing(self, inner: Consumption) -> None:
        """Fetch while nothing waits: the call waits, and can be cancelled."""
        waiting = asyncio.ensure_future(inner.fetch())
        await eventually(lambda: inner.runs)
        await inner.queue.exists()  # what was sent before has been answered
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    @rule(of=CLIENTS, many=st.integers(1, 3))
    def hand_out(self, of: int, many: int) -> None:
        consuming = self.clients[of].consuming
        for _ in range(many):
            if consuming is None or not consuming.hand:
                return
            message = consuming.inner.next_taken()
            assert isinstance(message, Message)
            assert (message.id, message.body) == consuming.hand.pop(0)

    @rule(of=CLIENTS)
    def stop(self, of: int) -> None:
        client, stored = self.clients[of], self.stored
        self.do(client.queue.stop())
        consuming, client.consuming = client.consuming, None
        if consuming is None:
            return
        assert consuming.inner.next_taken() is None
        if consuming.hand and consuming.mode == "taken" and stored.exists:
            stored.messages[:0] = consuming.hand
        elif consuming.hand and consuming.reliable and stored.holder in (None, client):
            stored.restore(consuming.hand[0][0])
        if stored.holder is client:
            stored.holder = None

    @rule(of=CLIENTS, id_=st.integers(0, 12))
    def ack(self, of: int, id_: int) -> None:
        client = self.clients[of]
        if client.attached:
            try:
                self.do(self.acknowledge(client.queue, id_))
            except Fenced:  # its last consumption was exclusive, and another has, or may have had, the queue
                assert client.queue._acks.last_reliable is not None
                assert client.queue._acks.last_reliable.exclusive
                return
            if client.consuming is None or client.consuming.reliable:
                self.stored.acknowledge(id_)

    async def acknowledge(self, queue: Queue, id_: int) -> None:
        await queue.ack(id_)

    @rule(of=CLIENTS, what=st.sampled_from(["flush", "detach", "close", "destroy", "script_flush"]), happens=RARELY)
    def change(self, of: int, what: str, happens: bool) -> None:
        """What makes the others begin anew: less often than the other rules."""
        if happens:
            getattr(self, what)(of)

    def flush(self, of: int) -> None:
        self.do(self.clients[of].queue.flush())
        self.stored.messages, self.stored.toack = [], []

    def detach(self, of: int) -> None:
        self.stop(of)
        self.do(self.clients[of].queue.detach())
        self.clients[of].attached = False

    def close(self, of: int) -> None:
        client = self.clients[of]
        if client.attached:
            self.stop(of)
            self.do(client.queue.close())
            client.attached = False
            self.stored.destroy()
            for each in self.clients:
                self.do(eventually(lambda each=each: not each.queue.is_attached))  # type: ignore[misc]
                self.lose(each)

    def destroy(self, of: int) -> None:
        """As busmq closes a queue, or as it expires: clients get no notice."""
        for place, each in enumerate(self.clients):
            if each.consuming and each.consuming.mode == "read":  # which place it goes on from is nobody's concern
                self.stop(place)
        self.do(self.delete(self.clients[0].queue.keys, expires=of == 0))
        self.stored.destroy()

    async def delete(self, keys: tuple[bytes, ...], *, expires: bool) -> None:
        for key in keys:
            await (self.redis.pexpire(key, 1) if expires else self.redis.delete(key))
        await eventually(lambda: self.none_of(keys))

    async def none_of(self, keys: tuple[bytes, ...]) -> bool:
        return not await self.redis.exists(*keys)

    def script_flush(self, of: int) -> None:
        self.do(self.redis.script_flush())

    def lose(self, client: Client) -> None:
        """Note that the client has heard that the queue is closed."""
        assert not client.queue.is_attached
        client.attached = False
        if client.consuming:
            assert client.consuming.inner.next_taken() is None
            self.do(client.queue.stop())
            client.consuming = None
        if self.stored.holder is client:
            self.stored.holder = None

    # Invariants

    @invariant()
    def the_keys_are_as_expected(self) -> None:
        stored, (metadata, messages, msgid, toack) = self.stored, self.clients[0].queue.keys
        assert self.do(self.pairs(messages)) == stored.messages
        assert self.do(self.pairs(toack)) == stored.toack
        assert (self.do(self.redis.get(msgid)) or b"0") == b"%d" % stored.last_id
        fields = {b"ttl": b"%d" % TTL, b"source": b"local", b"discover": b"false", b"maxsize": b"%d" % stored.maxsize}
        found = self.do(self.redis.hgetall(metadata))
        found.pop(b"last_consumer", None)
        found.pop(b"restored", None)
        assert found == (fields if stored.exists else {})
        for key in (metadata, messages, msgid, toack):
            assert self.do(self.redis.ttl(key)) != -1, "without expiry"
        assert bool(self.do(self.redis.exists(self.clients[0].queue.lease))) == (stored.holder is not None)

    @invariant()
    def the_clients_agree(self) -> None:
        for each in self.clients:
            assert each.queue.is_attached == each.attached
            assert self.do(each.queue.count()) == len(self.stored.messages)
            assert self.do(each.queue.exists()) == self.stored.exists

    async def pairs(self, key: bytes) -> list[Pair]:
        words: list[Any] = await self.redis.lrange(key, 0, -1)
        return [(int(id_), body) for id_, body in zip(words[::2], words[1::2], strict=True)]
