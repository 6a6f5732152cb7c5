"""What the rows RS-01 to RS-24 of the inventory ask for, and that the defects RS-D01 to RS-D18 are not ours.

Those of the wire alone are in ``test_outbox_wire.py`` and ``test_handshake.py`` (RS-09's frames, RS-D17's secrets),
those of the command line (RS-18, RS-19, RS-24, RS-D10, RS-D11) in ``test_cli.py``, kills in ``test_publisher_kill.py``.
"""

import asyncio
import json
import os
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.base.errors import WrongCall
from penstock.base.ports import free_port
from penstock.outbox import Allowed, Locked, Message, Outbox, Subscriptions
from penstock.outbox import lock as locks
from penstock.outbox.commands import SUBSCRIBE, UNSUBSCRIBE
from penstock.outbox.delivery import AHEAD_BYTES
from penstock.outbox.ids import as_id, new_id, sent_at
from penstock.outbox.store import Store, Waiting
from penstock.outbox.upcoming import Upcoming
from penstock.outbox.wire import Identity, Peer, Security, connect
from penstock.outbox.wire import MessageFrame as WireMessage
from tests.outbox.outboxes import (
    LATER,
    Got,
    has_subscriber,
    incoming,
    outbox,
    outgoing,
    settled,
    stored,
    subscribed,
    texts,
)
from tests.support.harness import eventually


@asynccontextmanager
async def raw_peer(to: Outbox, address: str = "127.0.0.1:1") -> AsyncIterator[Peer]:
    """A sender that is no outbox, and does what the test wants."""
    peer = await connect(to.advertise, Identity(address, b"r" * 16), Security.none())
    try:
        yield peer
    finally:
        peer.abort()


async def send_raw(peer: Peer, seq: int, id: bytes, data: bytes, key: str = "k") -> None:
    """Send, and wait until it is acknowledged."""
    await peer.send([WireMessage(seq, id, (key,), data)])
    while (await peer.acknowledged()).upto < seq:
        pass


def outgoing_of(datadir: Path) -> list[tuple[str, list[str]]]:
    """Return the data of all that is outgoing, with the addresses that it waits for."""
    found = stored(datadir, outgoing)
    return [*zip(texts(found), (list(each.addresses) for each in found), strict=True)]


def files(datadir: Path) -> list[str]:
    return [file.name for file in datadir.iterdir()]


def incoming_of(datadir: Path) -> list[str]:
    return texts(stored(datadir, incoming))


async def test_rs_01_two_outboxes_exchange_a_message_and_make_their_datadirs(tmp_path: Path) -> None:
    async with outbox(tmp_path / "deep" / "a") as a, outbox(tmp_path / "deep" / "b") as b:
        got_a, got_b = Got(), Got()
        a.every("ping", got_a)
        b.every("pong", got_b)
        await a.send("pong", "from a", b.advertise)
        await b.send("ping", "from b", a.advertise)
        await got_a.wait_for("from b")
        await got_b.wait_for("from a")
        assert got_a.messages[0].sender == b.advertise
    assert (tmp_path / "deep" / "a" / "outbox.db").exists()


async def test_rs_01_several_addresses_to_bind_need_one_to_advertise(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="expected advertise"):
        Outbox(datadir=tmp_path, bind=["127.0.0.1:0", "127.0.0.1:0"])
    with pytest.raises(WrongCall, match="expected advertise"):
        Outbox(datadir=tmp_path, bind="0.0.0.0:7000")
    async with outbox(tmp_path, ["127.0.0.1:0", "127.0.0.1:0"], advertise="127.0.0.1:7000") as both:
        assert both.advertise == "127.0.0.1:7000"


async def test_rs_02_a_publish_without_subscribers_stores_nothing(tmp_path: Path) -> None:
    async with outbox(tmp_path) as alone:
        id = await alone.publish("news", "nobody")
        assert as_id(id)[6] >> 4 == 7
        assert outgoing_of(tmp_path) == []


async def test_rs_02_a_publish_is_on_disk_for_a_subscriber_that_is_down(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a:
        async with outbox(tmp_path / "b") as b:
            address = b.advertise
            await subscribed(b, a, "news")
        id = await a.publish("news", "kept")
        assert outgoing_of(a.datadir) == [("kept", [address])]
        assert as_id(id) == stored(a.datadir, outgoing)[0].id


async def test_rs_02_a_subscriber_to_two_of_the_keys_gets_the_message_once_with_both(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b") as b, outbox(tmp_path / "c") as c:
        got_b, got_c = Got(), Got()
        b.every(["x", "y"], got_b)
        c.every(["x", "y"], got_c)
        await subscribed(b, a, "x", "y")
        await subscribed(c, a, "y")
        await a.publish(["x", "y", "z"], "both")
        await got_b.wait_for("both")
        await got_c.wait_for("both")
        assert got_b.messages[0].keys == ("x", "y")
        assert got_c.messages[0].keys == ("y",)


async def test_rs_03_a_message_is_sent_to_an_address_without_a_subscription(tmp_path: Path) -> None:
    port = free_port()
    async with outbox(tmp_path / "a") as a:
        await a.send("mail", {"to": "you"}, f"127.0.0.1:{port}", json=True)
        assert outgoing_of(a.datadir) == [('{"to":"you"}', [f"127.0.0.1:{port}"])]
        async with outbox(tmp_path / "b", f"127.0.0.1:{port}") as b:
            got = Got()
            b.every("mail", got)
            await got.wait_for('{"to":"you"}')
            assert got.messages[0].json() == {"to": "you"}
            await a.drain()


async def test_rs_04_a_subscription_waits_for_a_peer_that_is_down(tmp_path: Path) -> None:
    port = free_port()
    async with outbox(tmp_path / "b") as b:
        await b.subscribe(f"127.0.0.1:{port}", ["x", "y"])
        async with outbox(tmp_path / "a", f"127.0.0.1:{port}") as a:
            await eventually(lambda: has_subscriber(a, b.advertise, ("x", "y")))


async def test_rs_05_and_d06_unsubscribe_returns_once_it_is_on_disk_and_the_peer_learns_it(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a:
        async with outbox(tmp_path / "b") as b:
            await subscribed(b, a, "x", "y")
            await b.unsubscribe(a.advertise, "x")
            await b.drain()
            assert stored(b.datadir, lambda store: list(store.subscribed())) == [(a.advertise, "y")]
            assert stored(a.datadir, lambda store: list(store.subscriptions())) == [("y", b.advertise)]
        await a.publish("x", "nobody")
        assert outgoing_of(a.datadir) == []


async def test_rs_06_and_d05_remove_destination_ends_all_subscriptions_at_the_peer(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b") as b:
        await subscribed(b, a, "x", "y", "z")
        await b.remove_destination(a.advertise)
        await b.drain()
        assert stored(a.datadir, lambda store: list(store.subscriptions())) == []
        assert stored(b.datadir, lambda store: list(store.subscribed())) == []
        await a.publish(["x", "y", "z"], "nobody")
        assert outgoing_of(a.datadir) == []


async def test_rs_d05_a_dead_subscriber_can_be_forgotten_with_what_waits_for_it(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a:
        async with outbox(tmp_path / "b") as b, outbox(tmp_path / "c") as c:
            gone, other = b.advertise, c.advertise
            await subscribed(b, a, "x")
            await subscribed(c, a, "x")
        await a.publish("x", "waits")
        assert outgoing_of(a.datadir) == [("waits", sorted([gone, other]))]
        await a.forget(gone)
        assert outgoing_of(a.datadir) == [("waits", [other])]
        await a.forget(other)
        assert outgoing_of(a.datadir) == []
        await a.drain()
        await a.publish("x", "nobody")
        assert outgoing_of(a.datadir) == []
    async with outbox(tmp_path / "a") as a:
        await a.send("x", "again", gone)
        assert outgoing_of(a.datadir) == [("again", [gone])]


async def test_rs_07_every_once_any_all_and_off(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a", concurrency=1) as a, raw_peer(a) as peer:
        every, once, any_, all_, off = Got(), Got(), Got(), Got(), Got()
        a.every(["a", "b"], every)
        a.once(["a", "b"], once)
        a.any(["a", "b"], any_)
        a.all(all_)
        a.every("a", off).off()
        for number, key in enumerate("aacbab", 1):
            await send_raw(peer, number, new_id(), f"{key}{number}".encode(), key)
        await all_.wait_for("a1", "a2", "c3", "b4", "a5", "b6")
        await a.drain()
        assert every.texts == ["a1", "a2", "b4", "a5", "b6"]
        assert once.texts == ["b4"]
        assert any_.texts == ["a1"]
        assert off.texts == []


async def test_rs_07_a_handler_gets_id_keys_sender_and_time_of_a_message(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b") as b:
        got = Got()
        b.all(got)
        before = time.time()
        id = await a.send(["x", "y"], b"\x00\xff", b.advertise)
        await got.wait_for("\x00\udcff")
        (message,) = got.messages
        assert (message.id, message.keys, message.sender, message.attempts) == (id, ("x", "y"), a.advertise, 1)
        assert before - 1 <= message.sent <= time.time() + 1
        assert message.sent == sent_at(as_id(id))


async def test_rs_08_an_envelope_does_not_tell_who_else_gets_it(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b") as b, outbox(tmp_path / "c") as c:
        got = Got()
        b.every("x", got)
        await subscribed(b, a, "x")
        await subscribed(c, a, "x")
        await a.publish("x", "to both")
        await got.wait_for("to both")
        await a.drain()
        other = c.advertise
    for file in (tmp_path / "b").iterdir():
        assert other.encode() not in file.read_bytes()


async def test_rs_09_a_message_is_acknowledged_only_when_the_store_has_it(tmp_path: Path) -> None:
    async with outbox(tmp_path) as a, raw_peer(a) as peer:
        for number in range(1, 20):
            await send_raw(peer, number, new_id(), str(number).encode())
            assert incoming_of(tmp_path) == [str(stored) for stored in range(1, number + 1)]


async def test_rs_10_and_23_only_who_has_not_acknowledged_gets_it_again(tmp_path: Path) -> None:
    port = free_port()
    async with outbox(tmp_path / "a") as a:
        others = [outbox(tmp_path / str(number), dedupe=0) for number in range(3)]
        counts = [Got() for _ in others]
        for other, got in zip(others, counts, strict=True):
            await other.__aenter__()
            other.every("x", got)
            await subscribed(other, a, "x")
        async with outbox(tmp_path / "late", f"127.0.0.1:{port}") as late:
            await subscribed(late, a, "x")
            address = late.advertise
        await a.publish("x", "one")
        await eventually(lambda: outgoing_of(a.datadir) == [("one", [address])])
    async with outbox(tmp_path / "a") as a:
        got_late = Got()
        async with outbox(tmp_path / "late", f"127.0.0.1:{port}", dedupe=0) as late:
            late.every("x", got_late)
            await got_late.wait_for("one")
            await a.drain()
        assert outgoing_of(a.datadir) == []
        for other in others:
            await other.close()
    assert [got.texts for got in [*counts, got_late]] == [["one"]] * 4


async def test_rs_11_and_d01_a_message_stays_until_its_handlers_have_returned(tmp_path: Path) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    async def slow(_: Message) -> None:
        started.set()
        await go.wait()

    async with outbox(tmp_path) as a, raw_peer(a) as peer:
        a.every("k", slow)
        a.all(lambda _: None)
        await send_raw(peer, 1, new_id(), b"one")
        await started.wait()
        assert incoming_of(tmp_path) == ["one"]
        go.set()
        await a.drain()
        assert incoming_of(tmp_path) == []


async def test_rs_12_after_a_restart_all_that_waited_goes_on(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a:
        async with outbox(tmp_path / "b") as b:
            address = b.advertise
            await subscribed(b, a, "x")
        async with raw_peer(a) as peer:
            await send_raw(peer, 1, new_id(), b"in 1")
            await send_raw(peer, 2, new_id(), b"in 2")
        for number in range(3):
            await a.publish("x", f"out {number}")
    async with outbox(tmp_path / "a") as a:
        got = Got()
        a.every("k", got)
        await got.wait_for("in 1", "in 2")
        async with outbox(tmp_path / "b", address) as b:
            arrived = Got()
            b.every("x", arrived)
            await arrived.wait_for("out 0", "out 1", "out 2")
            await a.publish("x", "still subscribed")
            await arrived.wait_for("out 0", "out 1", "out 2", "still subscribed")


@pytest.mark.parametrize(("dedupe", "times"), [(60.0, 1), (0, 2)])
async def test_rs_13_and_d15_a_frame_that_comes_twice_is_handled_once_with_dedupe(
    tmp_path: Path, dedupe: float, times: int
) -> None:
    async with outbox(tmp_path, dedupe=dedupe) as a:
        got = Got()
        a.every("k", got)
        id = new_id()
        for _ in range(2):
            async with raw_peer(a) as peer:
                await send_raw(peer, 1, id, b"same")
        async with raw_peer(a) as peer:
            await send_raw(peer, 1, new_id(), b"last")
        await got.wait_for(*["same"] * times, "last")


async def test_rs_14_drain_waits_for_both_stores(tmp_path: Path) -> None:
    port = free_port()
    async with outbox(tmp_path / "a") as a:
        async with asyncio.timeout(60):
            await a.drain()
        await a.send("k", "waits", f"127.0.0.1:{port}")
        draining = asyncio.ensure_future(a.drain())
        await settled()
        assert not draining.done()
        async with outbox(tmp_path / "b", f"127.0.0.1:{port}") as b:
            await draining
            at_b = asyncio.ensure_future(b.drain())
            await settled()
            assert not at_b.done()
            b.all(lambda _: None)
            await at_b


async def test_rs_15_status_counts_subscribers_and_not_keys(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a:
        async with outbox(tmp_path / "b") as b:
            await subscribed(b, a, "x", "y")
        await a.publish("x", "1")
        await a.publish("y", "2")
        async with raw_peer(a) as peer:
            await send_raw(peer, 1, new_id(), b"one")
        assert str(await a.status()) == "2 keys, 1 subscribers, 1 incoming, 2 outgoing and 0 dead"


async def test_rs_16_close_can_be_called_again_and_removes_the_lock(tmp_path: Path) -> None:
    async with outbox(tmp_path) as a:
        assert locks.owner_of(tmp_path) is not None
        await a.close()
        await a.close()
        assert locks.owner_of(tmp_path) is None
    assert files(tmp_path) == ["outbox.db"]


async def test_rs_17_a_second_owner_is_told_who_the_first_is(tmp_path: Path) -> None:
    async with outbox(tmp_path):
        with pytest.raises(Locked, match=f"in use by process {os.getpid()} since 20"):
            await outbox(tmp_path).__aenter__()
    async with outbox(tmp_path):
        pass


async def test_calls_outside_of_async_with_and_wrong_addresses_are_explained(tmp_path: Path) -> None:
    a = outbox(tmp_path, f"127.0.0.1:{free_port()}")
    for _ in range(2):
        for call in (a.publish("k", b""), a.send("k", b"", "a:1"), a.subscribe("a:1", "k"), a.forget("a:1"), a.drain()):
            with pytest.raises(WrongCall, match="the outbox is closed: expected `async with"):
                await call
        with pytest.raises(WrongCall, match="is closed"):
            a.subscribers("k")
        async with a:
            with pytest.raises(OSError, match=f"in use: {a.advertise}"):
                await outbox(tmp_path / "other", a.advertise).__aenter__()
    with pytest.raises(WrongCall, match="'here' is no address"):
        outbox(tmp_path, advertise="here")


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a:
        with pytest.raises(OSError, match="in use"):
            await outbox(tmp_path / "b", a.advertise).__aenter__()
    assert locks.owner_of(tmp_path / "b") is None
    async with outbox(tmp_path / "b") as b:
        assert (await b.status()).counts.outgoing == 0


async def test_rs_17_all_that_publish_meanwhile_share_a_commit(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a:
        async with outbox(tmp_path / "b") as b:
            await subscribed(b, a, "x")
        await asyncio.sleep(0)
        before = (await a.status()).commits
        await asyncio.gather(*(a.publish("x", str(number)) for number in range(500)))
        assert (await a.status()).commits - before <= 2
        # That the subscriber is away is noted in a commit of its own, once.
        await eventually(lambda: any("refused" in reason for reason in a._deliveries.away.values()))
        await a.publish("x", "after that")
        before = (await a.status()).commits
        for number in range(10):
            await a.publish("x", str(number))
        assert (await a.status()).commits - before == 10


async def test_an_outbox_that_is_opened_again_advertises_its_new_port(tmp_path: Path) -> None:
    box = outbox(tmp_path)
    async with box:
        port = box.advertise
    async with outbox(tmp_path / "other", port), box:
        assert box.advertise != port
        await box.send("k", "to itself", box.advertise)
        got = Got()
        box.every("k", got)
        await got.wait_for("to itself")


async def test_a_handler_that_is_cancelled_at_the_end_has_not_failed(tmp_path: Path) -> None:
    async with outbox(tmp_path, attempts=1) as box:
        begun = asyncio.Event()

        async def hang(_: Message) -> None:
            begun.set()
            await asyncio.Event().wait()

        box.every("k", hang)
        await box.send("k", "once more", box.advertise)
        await begun.wait()
        await box.close(0)
    async with outbox(tmp_path, attempts=1) as box:
        got = Got()
        box.every("k", got)
        await got.wait_for("once more")
        assert (await box.status()).counts.dead == 0


async def test_rs_20_the_first_who_wants_a_key_subscribes_and_the_last_unsubscribes(tmp_path: Path) -> None:
    async with outbox(tmp_path) as box:
        shared = Subscriptions(box)
        here, there = (f"127.0.0.1:{free_port()}" for _ in range(2))

        def sent() -> list[tuple[str, str]]:
            return [(each.keys[0], each.addresses[0]) for each in stored(tmp_path, outgoing)]

        await shared.bind("x", here)
        await shared.bind("x", [here])
        assert sent() == []
        await shared.subscribe("x")
        await shared.subscribe("x")
        expected = [(SUBSCRIBE, here)]
        assert sent() == expected
        await shared.bind("x", there)
        await shared.unbind("x", here)
        expected += [(SUBSCRIBE, there), (UNSUBSCRIBE, here)]
        assert sent() == expected
        await shared.unsubscribe("x")
        assert sent() == expected
        await shared.unsubscribe("x")
        assert sent() == [*expected, (UNSUBSCRIBE, there)]
        with pytest.raises(WrongCall, match="nobody wants 'x'"):
            await shared.unsubscribe("x")


async def test_rs_21_and_d02_a_message_whose_handler_always_raises_is_a_dead_letter(tmp_path: Path) -> None:
    attempts = []

    def fails(message: Message) -> None:
        attempts.append(message.attempts)
        raise ValueError("no such order")

    async with outbox(tmp_path, attempts=3) as a, raw_peer(a) as peer:
        a.every("k", fails)
        await send_raw(peer, 1, new_id(), b"poison")
        await a.drain()
        assert attempts == [1, 2, 3]
        (letter,) = stored(tmp_path, Store.list_dead)
        assert (letter.data, letter.attempts, letter.error) == (b"poison", 3, "ValueError: no such order")
        assert (letter.address, letter.outgoing) == ("127.0.0.1:1", False)
    store = Store.open(tmp_path)
    with store.transaction():
        assert store.requeue(letter.number)
        assert not store.requeue(letter.number)
    store.close()
    async with outbox(tmp_path) as a:
        got = Got()
        a.every("k", got)
        await got.wait_for("poison")


async def test_rs_d02_a_handler_that_raises_runs_again_after_the_delay_and_across_restarts(tmp_path: Path) -> None:
    failed = asyncio.Event()

    def fails(_: Message) -> None:
        failed.set()
        raise ValueError

    async with outbox(tmp_path, backoff=LATER) as a, raw_peer(a) as peer:
        a.every("k", fails)
        await send_raw(peer, 1, new_id(), b"one")
        await failed.wait()
        await eventually(lambda: stored(tmp_path, Store.next_due) is not None)
    async with outbox(tmp_path, backoff=LATER) as a, raw_peer(a) as peer:
        got = Got()
        a.every("k", got)
        await send_raw(peer, 1, new_id(), b"two")
        await got.wait_for("two")
        assert incoming_of(tmp_path)[0] == "one"


async def test_rs_22_and_d16_no_more_handlers_run_than_concurrency_allows(tmp_path: Path) -> None:
    running = most = done = 0

    async def handler(_: Message) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        done += 1

    async with outbox(tmp_path, concurrency=2) as a, raw_peer(a) as peer:
        a.every("k", handler)
        await peer.send([WireMessage(number, new_id(), ("k",), b"") for number in range(1, 51)])
        await eventually(lambda: done == 50)
        assert most == 2


async def test_rs_d16_what_waits_is_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    body = "x" * 1024
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b") as b, raw_peer(b) as peer:
        await asyncio.gather(*(a.send("k", body, f"127.0.0.1:{free_port()}") for _ in range(2)))
        address = next(iter(a._deliveries.numbers))
        await asyncio.gather(*(a.send("k", body, address) for _ in range(3000)))
        (delivery,) = (each for each in a._deliveries.all if each.address == address)
        assert len(delivery._ahead) * len(body) <= AHEAD_BYTES + len(body)
        assert stored(a.datadir, Store.counts).outgoing == 3002
        await peer.send([WireMessage(number, new_id(), ("k",), b"") for number in range(1, 3001)])
        await eventually(lambda: stored(b.datadir, Store.counts).incoming == 3000)
        assert b._handling is not None
        await eventually(lambda: not b._handling._upcoming.in_hand)  # type: ignore[union-attr]


async def test_rs_d03_commands_that_wait_are_sent_after_a_restart(tmp_path: Path) -> None:
    port = free_port()
    async with outbox(tmp_path / "b", advertise="127.0.0.1:9999") as b:
        await b.subscribe(f"127.0.0.1:{port}", "x")
        await b.subscribe(f"127.0.0.1:{port}", "y")
        await b.unsubscribe(f"127.0.0.1:{port}", "x")
    async with (
        outbox(tmp_path / "b", advertise="127.0.0.1:9999") as b,
        outbox(tmp_path / "a", f"127.0.0.1:{port}") as a,
    ):
        await b.drain()
        await eventually(lambda: has_subscriber(a, "127.0.0.1:9999", ("y",)))
        assert not has_subscriber(a, "127.0.0.1:9999", ("x",))


async def test_rs_d04_and_d14_what_is_in_flight_is_not_sent_again_on_a_connection_that_lives(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b", dedupe=0) as b:
        got = Got()
        b.every("x", got)
        await subscribed(b, a, "x")
        texts = [str(number) for number in range(2000)]
        await asyncio.gather(*(a.publish("x", text) for text in texts))
        await got.wait_for(*texts)
        await a.drain()
        await b.drain()
        assert len(got.messages) == 2000


async def test_rs_d07_a_subscription_to_several_keys_is_one_message(tmp_path: Path) -> None:
    async with outbox(tmp_path) as b:
        await b.subscribe(f"127.0.0.1:{free_port()}", ["x", "y", "z"])
        ((data, _),) = outgoing_of(tmp_path)
        assert json.loads(data) == {"address": b.advertise, "keys": ["x", "y", "z"]}


def begin(datadir: Path, first: int, last: int) -> None:
    """Leave the store as a process does that is killed while it handles the messages from ``first`` to ``last``."""
    store = Store.open(datadir)
    with store.transaction():
        store.begin([(first, last, first == last)])
    store.close()


@pytest.mark.parametrize(("crashes", "together"), [(1, True), (2, False)])
async def test_rs_d08_suspects_of_two_crashes_are_handled_one_after_another(
    tmp_path: Path, crashes: int, together: bool
) -> None:
    running = most = 0

    async def handler(_: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    async with outbox(tmp_path) as a, raw_peer(a) as peer:
        for number in range(1, 10):
            await send_raw(peer, number, new_id(), b"")
    for _ in range(crashes):
        begin(tmp_path, 1, 9)
    async with outbox(tmp_path, concurrency=8) as a:
        a.every("k", handler)
        await a.drain()
        assert (most > 1) == together


async def test_suspects_of_a_time_with_attempts_are_none_where_messages_are_tried_for_ever(tmp_path: Path) -> None:
    async with outbox(tmp_path) as a, raw_peer(a) as peer:
        for number in range(1, 10):
            await send_raw(peer, number, new_id(), str(number).encode())
    begin(tmp_path, 1, 9)
    begin(tmp_path, 1, 9)
    async with outbox(tmp_path, attempts=None, concurrency=9) as a:
        running = list[str]()

        async def hang(message: Message) -> None:
            running.append(str(message))
            await asyncio.Event().wait()

        a.every("k", hang)
        await eventually(lambda: len(running) == 9)
        assert running == [str(number) for number in range(1, 10)]
        await a.close(0)


async def test_what_is_tried_for_ever_runs_at_once_and_in_order_after_two_crashes(tmp_path: Path) -> None:
    count = 100
    running = list[str]()

    async def hang(message: Message) -> None:
        running.append(str(message))
        await asyncio.Event().wait()

    for crash in range(3):
        running.clear()
        async with outbox(tmp_path / str(crash), attempts=None, concurrency=count) as a:
            a.every("k", hang)
            if not crash:
                await asyncio.gather(*(a.send("k", str(number), a.advertise) for number in range(count)))
            await eventually(lambda: len(running) == count and not outgoing_of(a.datadir))
            assert running == [str(number) for number in range(count)]
            shutil.copytree(a.datadir, tmp_path / str(crash + 1))
            await a.close(0)


async def test_rs_d09_messages_wait_for_their_handler(tmp_path: Path) -> None:
    async with outbox(tmp_path) as a, raw_peer(a) as peer:
        handled = Got()
        a.every("other", handled)
        for number in range(1, 1001):
            await peer.send([WireMessage(number, new_id(), ("k",), str(number).encode())])
        await send_raw(peer, 1001, new_id(), b"after them", "other")
        await handled.wait_for("after them")
        assert len(incoming_of(tmp_path)) == 1000
        got = Got()
        a.every("k", got)
        await got.wait_for(*map(str, range(1, 1001)))
        await a.drain()


async def test_rs_d09_what_had_begun_at_the_end_waits_for_a_handler_that_comes_late(tmp_path: Path) -> None:
    """Also if it comes just while the outbox notes that there is none."""
    for waits in range(5):
        got, begun = Got(), asyncio.Event()
        async with outbox(tmp_path / str(waits)) as a:
            a.all(lambda _, begun=begun: begun.set() or asyncio.Event().wait())  # type: ignore[misc]
            await a.send("x", "one", a.advertise)
            await begun.wait()
            await a.close(0)
        async with outbox(tmp_path / str(waits)) as a:
            for _ in range(waits):
                await asyncio.sleep(0)
            a.all(got)
            await got.wait_for("one")


async def test_rs_d09_what_comes_after_a_handler_is_off_waits_for_the_next_one(tmp_path: Path) -> None:
    """Also what had begun already, and what had failed before."""
    async with outbox(tmp_path) as a, raw_peer(a) as peer:
        await peer.send([WireMessage(number, new_id(), ("k",), str(number).encode()) for number in range(1, 101)])
        await eventually(lambda: len(incoming_of(tmp_path)) == 100)
        got = Got()

        def fails(message: Message) -> None:
            handler.off()
            got(message)
            raise ValueError

        a.any("k", got)
        await got.wait_for("1")
        handler = a.every("k", fails)
        await eventually(lambda: len(got.messages) == 2 and stored(tmp_path, _parked) == 1)
        assert len(incoming_of(tmp_path)) == 99
        again = Got()
        a.every("k", again)
        await again.wait_for(*map(str, range(2, 101)))
        await a.drain()


async def test_rs_07_a_handler_that_is_off_is_not_called_for_a_message_that_others_have_in_hand(tmp_path: Path) -> None:
    async with outbox(tmp_path) as a, raw_peer(a) as peer:
        begun, go, got = asyncio.Event(), asyncio.Event(), Got()

        async def waits(_: Message) -> None:
            begun.set()
            await go.wait()

        a.every("k", waits)
        handler = a.every("k", got)
        await send_raw(peer, 1, new_id(), b"one")
        await begun.wait()
        handler.off()
        go.set()
        await a.drain()
        assert got.texts == []


@pytest.mark.parametrize("ends", [False, True])
async def test_rs_07_and_d02_what_is_called_once_and_raises_is_called_again_unless_it_is_off(
    tmp_path: Path, ends: bool
) -> None:
    async with outbox(tmp_path, attempts=3) as a, raw_peer(a) as peer:
        got = Got()

        async def fails_once(message: Message) -> None:
            got(message)
            if ends:
                handler.off()
            if message.attempts == 1:
                raise ValueError

        handler = a.any("k", fails_once)
        await send_raw(peer, 1, new_id(), b"one")
        if ends:
            await eventually(lambda: stored(tmp_path, _parked) == 1)
        else:
            await eventually(lambda: not incoming_of(tmp_path))
        assert got.texts == ["one"] * (1 if ends else 2)


async def test_a_message_that_runs_once_more_keeps_nobody_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def looking(upcoming: Upcoming, most: int) -> list[list[Waiting]]:
        nonlocal looks
        looks += 1
        return look(upcoming, most)

    look = Upcoming.next
    monkeypatch.setattr(Upcoming, "next", looking)
    async with outbox(tmp_path) as a, raw_peer(a) as peer:
        again, go = asyncio.Event(), asyncio.Event()

        async def fails_once(message: Message) -> None:
            if message.attempts == 1:
                raise ValueError
            again.set()
            await go.wait()

        a.every("k", fails_once)
        await send_raw(peer, 1, new_id(), b"one")
        await again.wait()
        before = looks
        for _ in range(1000):
            await asyncio.sleep(0)
        assert looks - before < 10
        go.set()
        await a.drain()


def _parked(store: Store) -> int:
    connection = sqlite3.connect(store.path)
    try:
        return int(connection.execute("SELECT count(*) FROM tries WHERE due = 9e999").fetchone()[0])
    finally:
        connection.close()


def test_rs_d12_unlock_refuses_while_the_owner_lives(tmp_path: Path) -> None:
    owner = locks.Lock(tmp_path)
    with pytest.raises(Locked):
        locks.remove_stale(tmp_path)
    owner.release()
    assert not locks.remove_stale(tmp_path)


def test_rs_d13_the_lock_of_a_crashed_owner_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / locks.NAME).write_text('{"pid": 1, "since": "2020-01-01T00:00:00+00:00"}')
    assert locks.owner_of(tmp_path) is None
    locks.Lock(tmp_path).release()
    (tmp_path / locks.NAME).write_text("torn")
    assert locks.remove_stale(tmp_path)
    assert not (tmp_path / locks.NAME).exists()


async def test_rs_d17_nobody_subscribes_for_others_or_to_what_is_not_allowed(tmp_path: Path) -> None:
    me = "127.0.0.1:1"
    allowed = Allowed(subscribe={me: ["public/*"]})
    async with outbox(tmp_path, allowed=allowed) as a, raw_peer(a, me) as peer:
        refused = dict[int, str]()
        commands = [
            (SUBSCRIBE, {"address": "127.0.0.1:2", "keys": ["public/x"]}),
            (SUBSCRIBE, {"address": me, "keys": ["public/x", "secret"]}),
            (UNSUBSCRIBE, {"address": "127.0.0.1:2", "keys": ["public/x"]}),
            (SUBSCRIBE, {"address": me, "keys": "public/x"}),
            (SUBSCRIBE, {"address": me, "keys": ["public/\ud800"]}),
            (UNSUBSCRIBE, {"address": me, "keys": ["k" * 2_000_000]}),
            (SUBSCRIBE, {"address": me, "keys": ["public/x"]}),
        ]
        for seq, (verb, command) in enumerate(commands, 1):
            await peer.send([WireMessage(seq, new_id(), (verb,), json.dumps(command).encode())])
            refused |= (await peer.acknowledged()).refused
        assert refused == {
            1: "127.0.0.1:1 may not subscribe for 127.0.0.1:2",
            2: "127.0.0.1:1 may not subscribe to secret",
            3: "127.0.0.1:1 may not subscribe for 127.0.0.1:2",
            4: "expected an address and keys",
            5: "expected an address and keys",
            6: "a command of 2,000,040 bytes is too large: the limit is 1,048,576",
        }
        assert stored(tmp_path, lambda store: list(store.subscriptions())) == [("public/x", me)]
        assert (await a.status()).refused == 6


async def test_subscriptions_that_cannot_be_written_are_refused_at_once(tmp_path: Path) -> None:
    async with outbox(tmp_path) as box:
        for keys in (["\ud800"], [str(number) for number in range(10_001)], ["line\nfeed"], [], ["k" * 2_000_000]):
            with pytest.raises(WrongCall):
                await box.subscribe("127.0.0.1:1", keys)
        assert outgoing_of(tmp_path) == []


async def test_rs_d17_what_a_peer_refuses_is_a_dead_letter_here(tmp_path: Path) -> None:
    async with outbox(tmp_path / "a", allowed=Allowed(subscribe={})) as a, outbox(tmp_path / "b") as b:
        await b.subscribe(a.advertise, "x")
        await b.drain()
        (letter,) = stored(b.datadir, Store.list_dead)
        assert letter.outgoing
        assert (letter.address, letter.error) == (a.advertise, f"{b.advertise} may not subscribe to x")


async def test_the_traceback_of_an_error_is_logged_once(tmp_path: Path) -> None:
    errors = iter([ValueError("no"), ValueError("no"), KeyError("other"), KeyError("other"), KeyError("other")])

    def fail(_: Message) -> None:
        raise next(errors)

    with capture_logs() as logged:
        async with outbox(tmp_path / "a") as a, outbox(tmp_path / "b") as b:
            b.all(fail)
            await a.send("k", b"", b.advertise)
            await eventually(lambda: stored(b.datadir, Store.list_dead))
    failures = [each for each in logged if each["event"] == "a handler failed"]
    assert [each["attempts"] for each in failures] == [1, 2, 3, 4, 5]
    assert ["exception" in each for each in failures] == [True, False, True, False, False]
    assert failures[1]["reason"] == "ValueError: no"
