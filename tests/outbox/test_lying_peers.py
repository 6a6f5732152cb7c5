"""Whole outboxes between peers that lie: honest peers notice nothing, and no message that is theirs is lost."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from penstock.base.errors import WrongCall
from penstock.outbox import Outbox, Security, inbox
from penstock.outbox.commands import REMOVE, SUBSCRIBE, UNSUBSCRIBE
from penstock.outbox.frames import HEADER, Kind, acknowledged_in, acknowledgements, frame, frame_of, messages_in
from penstock.outbox.frames import MessageFrame as Sent
from penstock.outbox.hello import Limits, hello
from penstock.outbox.ids import new_id
from penstock.outbox.listing import outgoing
from penstock.outbox.store import Store
from penstock.outbox.wire import Identity
from tests.outbox.outboxes import Got, outbox, stored, subscribed
from tests.outbox.peers import Raw, impostor, raw_at
from tests.support.harness import eventually, rounds

LIAR = Identity("127.0.0.1:9", b"l" * 16)
COMMANDS = (SUBSCRIBE, UNSUBSCRIBE, REMOVE)


def greeting(identity: Identity = LIAR) -> bytes:
    return hello(identity, Limits(), wanted="", has_secret=False)


def body_of(dice: random.Random) -> bytes:
    address = dice.choice([LIAR.address, "127.0.0.1:1", "victim.example:1", "", "\x00", "a" * 400, 5, None])
    keys = dice.choice([["k"], [], ["orders"] * 50, [""], ["a\nb"], [5], "k", None, ["k" * 70_000], ["\ud800"]])
    whole = json.dumps(
        dice.choice([{"address": address, "keys": keys}, {"address": address}, keys, address, {}])
    ).encode()
    return dice.choice([whole, whole[: len(whole) // 2], b"[" * 50_000, b"\xff", b"", dice.randbytes(30)])


def lies(dice: random.Random) -> bytes:
    """Return frames that are valid, mostly, with commands that are not; some with flipped bits, swapped or cut."""
    seq, pieces = 0, [greeting()]
    for _ in range(dice.randrange(1, 8)):
        seq += dice.choice([1, 1, 1, 2, 2**40])
        keys = tuple(dice.choice([*COMMANDS, "lies", "", "a\nb", "k" * 300]) for _ in range(dice.randrange(1, 4)))
        pieces.append(frame_of([Sent(seq, dice.choice([new_id(), bytes(16)]), keys, body_of(dice))]))
    pieces += [frame(Kind.PING, 1), acknowledgements(1, {})][: dice.randrange(3)]
    for _ in range(dice.choice([0, 0, 1, 2])):
        at, other = dice.randrange(len(pieces)), dice.randrange(len(pieces))
        piece = bytearray(pieces[at])
        piece[dice.randrange(len(piece))] ^= 1 << dice.randrange(8)
        pieces[at], pieces[other] = dice.choice([(pieces[other], pieces[at]), (bytes(piece), pieces[other])])
    return b"".join(pieces)[: dice.choice([None, None, dice.randrange(1, 2000)])]


async def test_honest_peers_notice_nothing_of_peers_that_lie(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    dice, failed, got = random.Random(seed), list[Any](), Got()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with outbox(tmp_path / "theirs") as theirs, outbox(tmp_path / "ours") as ours:
        theirs.every("orders", got)
        theirs.every("lies", lambda _: None)
        await subscribed(theirs, ours, "orders")
        descriptors = psutil.Process().num_fds()
        sent = list[str]()
        for number in rounds():
            await asyncio.gather(*(lie(to, lies(dice), dice.random() < 0.5) for to in (ours, theirs) for _ in range(5)))
            sent.append(str(number))
            await ours.publish("orders", sent[-1])
        await got.wait_for(*sent)
        assert not failed, seed
        assert not [text for text, count in _counted(got.texts) if count > 1], seed
        for each in (ours, theirs):
            addresses = {address for _, address in stored(each.datadir, lambda store: list(store.subscriptions()))}
            assert addresses <= {LIAR.address, theirs.advertise}, seed
        assert ours.subscribers("orders") in (1, 2)
        await eventually(lambda: psutil.Process().num_fds() <= descriptors + 2)


def _counted(texts: list[str]) -> list[tuple[str, int]]:
    return [(text, texts.count(text)) for text in set(texts)]


async def lie(to: Outbox, data: bytes, waits: bool) -> None:
    async with raw_at(to.advertise) as peer:
        await peer.write(data)
        if waits:
            peer.writer.write_eof()
            async for _ in peer.frames():
                pass


async def test_nobody_is_subscribed_or_unsubscribed_by_others(tmp_path: Path) -> None:
    """RS-D17, over the wire: the sender learns why, and the message is its dead letter."""
    async with outbox(tmp_path / "ours") as ours, outbox(tmp_path / "theirs") as theirs:
        await subscribed(theirs, ours, "orders")
        victim = json.dumps({"address": theirs.advertise, "keys": ["orders"]}).encode()
        async with raw_at(ours.advertise) as liar:
            messages = [Sent(seq, new_id(), (verb,), victim) for seq, verb in enumerate(COMMANDS, 1)]
            await liar.write(greeting() + frame_of(messages))
            found = b"".join([body async for kind, body in until_acknowledged(liar)])
        assert found.count(b"127.0.0.1:9 may not subscribe for 127.0.0.1:") == 3
        assert ours.subscribers("orders") == 1
        assert (await ours.status()).refused == 3


async def test_subscriptions_are_bounded_whatever_comes_at_once(tmp_path: Path) -> None:
    """Together in a frame, by many addresses, again and again, or to nothing."""
    async with outbox(tmp_path) as ours:
        small = [f"{number:x}" for number in range(6000)]
        asked = [(LIAR.address, small), (LIAR.address, small), (LIAR.address, [f"-{each}" for each in small])]
        assert await refusals(ours, SUBSCRIBE, *asked) == {3: "too many subscriptions"}
        assert await refusals(ours, SUBSCRIBE, (LIAR.address, small)) == {}, "to ask again changes nothing"
        assert await refusals(ours, SUBSCRIBE, (LIAR.address, [])) == {1: "expected keys to subscribe to"}
        assert (
            len(ours._deliveries.routes)
            == len(stored(tmp_path, lambda store: list(store.subscriptions())))
            == len(small)
        )
        for verb in (UNSUBSCRIBE, REMOVE):
            assert await refusals(ours, verb, ("127.0.0.1:10", ["k"])) == {}
        assert ours._deliveries.numbers.keys() == {LIAR.address}, "an address that never subscribed is not kept"
        assert await refusals(ours, REMOVE, (LIAR.address, [])) == {}
        assert len(ours._deliveries.routes) == 0


async def test_the_keys_of_subscriptions_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_SUBSCRIBED_BYTES", 150_000)
    long = [f"{number}".ljust(60_000, "ü")[:30_000] for number in range(3)]
    async with outbox(tmp_path) as ours:
        asked = [(LIAR.address, [key]) for key in long]
        assert await refusals(ours, SUBSCRIBE, *asked) == {3: "too many subscriptions"}
        assert await refusals(ours, UNSUBSCRIBE, asked[0]) == {}
        assert await refusals(ours, SUBSCRIBE, asked[2]) == {}
        none_has = "k" * 65_533
        assert await refusals(ours, SUBSCRIBE, (LIAR.address, [none_has])) == {1: "expected an address and keys"}
        with pytest.raises(WrongCall, match="at most 65,532 bytes"):
            await ours.subscribe("127.0.0.1:9", none_has)
    async with outbox(tmp_path) as ours:
        assert ours._deliveries.routes.bytes == 2 * len(long[0].encode())


async def test_no_new_address_subscribes_beyond_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_DESTINATIONS", 2)
    async with outbox(tmp_path) as ours:
        for port, expected in enumerate([{}, {}, {1: "too many subscriptions"}], 10):
            assert await refusals(ours, SUBSCRIBE, (f"127.0.0.1:{port}", ["k"])) == expected
        assert await refusals(ours, SUBSCRIBE, ("127.0.0.1:10", ["l"])) == {}
        assert ours.subscribers("k") == 2


async def refusals(to: Outbox, verb: str, *asked: tuple[str, list[str]]) -> dict[int, str]:
    """Send commands (address, keys) in one frame from the first address; return what was refused, and why."""
    bodies = [json.dumps({"address": address, "keys": keys}).encode() for address, keys in asked]
    messages = [Sent(seq, new_id(), (verb,), body) for seq, body in enumerate(bodies, 1)]
    refused, upto = dict[int, str](), 0
    async with raw_at(to.advertise) as peer:
        await peer.write(greeting(Identity(asked[0][0], b"l" * 16)) + frame_of(messages))
        async for kind, body in peer.frames():
            if kind == Kind.ACKNOWLEDGED:
                upto, new = acknowledged_in(body)
                refused |= new
            if upto == len(asked):
                break
    return refused


async def until_acknowledged(peer: Raw) -> Any:
    async for found in peer.frames():
        yield found
        if found[0] == Kind.ACKNOWLEDGED:
            return


async def test_a_destination_that_lies_loses_only_what_it_has_acknowledged(tmp_path: Path) -> None:
    """It acknowledges some of what it gets, and ends in every way; the next peer at its address gets the rest."""
    seed = random.randrange(2**32)
    dice, acknowledged, sent = random.Random(seed), set[str](), [str(number) for number in range(300)]
    visits = 0

    async def behave(peer: Raw) -> None:
        nonlocal visits
        visits += 1
        cut = dice.choice([None, None, None, 30])
        await peer.write(greeting()[:cut])
        if cut is not None:
            return
        async for kind, body in peer.frames():
            if kind != Kind.MESSAGES:
                continue
            messages, _ = messages_in(body)
            taken = messages[: dice.randrange(1, 4)]
            await peer.write(acknowledgements(taken[-1].seq, {}))
            acknowledged.update(each.data.decode() for each in taken)
            last = messages[-1].seq
            await peer.write(
                dice.choice(
                    [
                        b"",
                        acknowledgements(last + 1000, {}),
                        acknowledgements(taken[-1].seq, {}),
                        acknowledgements(last, {last + 1000: "no"}),
                        frame_of([Sent(1, new_id(), ("orders",), b"from a destination")]),
                        HEADER.pack(1, Kind.MESSAGES, 2**31),
                        frame(Kind.BYE, "\x1b[2J"),
                        dice.randbytes(20),
                    ]
                )
            )
            return

    failed, got = list[Any](), Got()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with outbox(tmp_path / "ours") as ours:
        async with impostor(behave) as address:
            for text in sent:
                await ours.send("orders", text, address)
            await eventually(lambda: visits >= 30 and acknowledged)
        async with outbox(tmp_path / "theirs", address) as theirs:
            theirs.every("orders", got)
            await ours.drain()
            await theirs.drain()
        assert not failed, seed
    assert set(got.texts) | acknowledged == set(sent), seed
    assert len(got.texts) == len(set(got.texts)), seed
    assert stored(tmp_path / "ours", Store.counts).dead == 0, seed


@pytest.mark.parametrize("bind", ["127.0.0.1:0", "localhost:0"])
async def test_outboxes_with_a_secret_are_known_by_where_they_listen(tmp_path: Path, bind: str) -> None:
    security = Security.shared("correct horse battery staple")
    got = Got()
    async with (
        outbox(tmp_path / "ours", bind, security=security) as ours,
        outbox(tmp_path / "theirs", bind, security=security) as theirs,
    ):
        await subscribed(theirs, ours, "orders")
        theirs.every("orders", got)
        await ours.publish("orders", "one")
        await got.wait_for("one")
        async with raw_at(ours.advertise) as stranger:
            await stranger.write(greeting())
            (reason,) = await stranger.reasons()
        assert reason == "expected a shared secret: both sides must be set up alike"
        await eventually(lambda: ours._listener is not None and ours._listener.counts["secret"] == 1)
        assert (await ours.status()).strangers["secret"] == 1


async def test_a_key_that_cannot_be_stored_harms_nobody_else(tmp_path: Path) -> None:
    """All that is published at once is one transaction."""
    async with outbox(tmp_path) as ours:
        sends = [ours.send(key, b"x", "127.0.0.1:1") for key in ("one", "\ud800", "two")]
        one, wrong, two = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(wrong, WrongCall)
        assert isinstance(one, str)
        assert isinstance(two, str)
        assert (await ours.status()).counts.outgoing == 2


async def test_nobody_can_make_the_message_of_another_a_duplicate(tmp_path: Path) -> None:
    """A subscriber knows the ids of what others get, too, and may be faster to send them."""
    got = Got()
    async with outbox(tmp_path / "ours") as ours:
        async with outbox(tmp_path / "theirs") as theirs:
            await subscribed(theirs, ours, "orders")
        await ours.publish("orders", "true")
        (id,) = stored(ours.datadir, lambda store: [each.id for each in outgoing(store)])
        theirs = outbox(tmp_path / "theirs", theirs.advertise)
        async with theirs:
            async with raw_at(theirs.advertise) as liar:
                await liar.write(greeting() + frame_of([Sent(1, id, ("orders",), b"false")]))
                async for _ in until_acknowledged(liar):
                    pass
            theirs.every("orders", got)
            await got.wait_for("true", "false")
            await ours.drain()


@pytest.mark.parametrize("security", [Security.none(), Security.shared("correct horse battery staple")])
async def test_another_store_with_the_address_of_a_subscriber_is_refused(tmp_path: Path, security: Security) -> None:
    async with outbox(tmp_path / "publisher", security=security) as publisher:
        async with outbox(tmp_path / "subscriber", security=security) as subscriber:
            address = subscriber.advertise
            await subscribed(subscriber, publisher, "k")
        async with Outbox(datadir=tmp_path / "other", advertise=address, security=security) as other:
            await other.unsubscribe(publisher.advertise, "k")
            await other.remove_destination(publisher.advertise)
            await other.subscribe(publisher.advertise, "all")
            await other.drain()
            letters = stored(other.datadir, lambda store: store.list_dead())
            assert [f"penstock outbox trust {address}" in each.error for each in letters] == [True] * 3
            assert (publisher.subscribers("k"), publisher.subscribers("all")) == (1, 0)
            await publisher.trust(address)
            await other.subscribe(publisher.advertise, "all")
            await other.drain()
            assert publisher.subscribers("all") == 1
    async with (
        outbox(tmp_path / "publisher", publisher.advertise, security=security) as publisher,
        Outbox(datadir=tmp_path / "subscriber", advertise=address, security=security) as subscriber,
    ):
        await subscriber.unsubscribe(publisher.advertise, "k")
        await subscriber.drain()
        assert publisher.subscribers("k") == 1


async def test_one_that_says_it_is_the_sender_cannot_make_its_message_a_duplicate(tmp_path: Path) -> None:
    got = Got()
    async with outbox(tmp_path) as receiver:
        receiver.all(got)
        id = new_id()
        for store, data in ((b"l" * 16, b"false"), (b"s" * 16, b"true"), (b"s" * 16, b"again")):
            identity = Identity("127.0.0.1:9", store)
            async with raw_at(receiver.advertise) as peer:
                await peer.write(greeting(identity) + frame_of([Sent(1, id, ("k",), data)]))
                async for _ in until_acknowledged(peer):
                    pass
        await got.wait_for("false", "true")


async def test_many_strangers_make_few_lines(tmp_path: Path) -> None:
    async with outbox(tmp_path, security=Security.shared("correct horse battery staple")) as ours:
        with capture_logs() as lines:
            for _ in range(100):
                async with raw_at(ours.advertise) as stranger:
                    await stranger.write(b"GET / HTTP/1.1\r\n\r\n")
                    async for _ in stranger.frames():
                        pass
            await eventually(lambda: ours._listener is not None and ours._listener.counts["version"] == 100)
        assert len([line for line in lines if line["event"] == "a connection is refused"]) == 1
