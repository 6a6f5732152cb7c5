"""Outboxes over real sockets: what is sent arrives once and in order, and peers that lie harm nobody but themselves."""

import asyncio
import os
import random
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import psutil
import pytest

from penstock.outbox import listener as listening
from penstock.outbox.frames import (
    HEADER,
    VERSION,
    Kind,
    MessageFrame,
    acknowledged_in,
    acknowledgements,
    frame,
    frame_of,
    messages_in,
    number_in,
)
from penstock.outbox.hello import hello
from penstock.outbox.wire import Disconnected, Identity, Limits, Listener, Peer, Refused, Security, connect, listen
from tests.outbox.peers import HERE, SECRET, THERE, Raw, Receiving, all_acknowledged, greeting, impostor, message, raw
from tests.support.harness import eventually

SHARED = Security.shared(SECRET)
OPEN = Security.none()
SMALL = Limits(window_messages=10, window_bytes=4000, max_message_bytes=50_000)
BRIEF = Limits(handshake_seconds=0.3)


@asynccontextmanager
async def listens(
    on_peer: Callable[[Peer], Awaitable[None]] | None = None, security: Security = OPEN, **options: Any
) -> AsyncIterator[Listener]:
    listener = await listen("127.0.0.1:0", THERE, security, on_peer or Receiving(), **options)
    try:
        yield listener
    finally:
        await listener.close()


@asynccontextmanager
async def connected(listener: Listener, security: Security = OPEN, **options: Any) -> AsyncIterator[Peer]:
    peer = await connect(listener.addresses[0], HERE, security, **options)
    try:
        yield peer
    finally:
        peer.close()
        await peer.closed()


@pytest.mark.parametrize("security", [OPEN, SHARED], ids=["open", "secret"])
async def test_messages_arrive_in_order_and_are_acknowledged(security: Security) -> None:
    received = Receiving()
    sent = [message(seq, os.urandom(seq % 300)) for seq in range(1, 20_000, 2)]
    async with listens(received, security) as listener, connected(listener, security) as peer:
        await asyncio.gather(peer.send(sent), all_acknowledged(peer, sent[-1].seq))
        assert received.messages == sent
        assert peer.unacknowledged == (0, 0)
        assert (peer.address, peer.store) == (listener.addresses[0], THERE.store)
        assert (received.peers[0].address, received.peers[0].store) == (HERE.address, HERE.store)
    assert listener.counts == {"accepted": 1}
    assert received.ended == ["the other side says: bye"]


async def test_both_sides_send_on_one_connection() -> None:
    """A connector takes messages if it has said so; else they break the protocol."""

    async def answer(peer: Peer) -> None:
        await peer.send([message(seq) for seq in range(1, 101)])
        await all_acknowledged(peer, 100)

    async with listens(answer) as listener:
        async with connected(listener, receives=True) as peer:
            found = list[MessageFrame]()
            while len(found) < 100:
                found += await peer.receive()
            peer.acknowledge(100)
            assert [each.seq for each in found] == [*range(1, 101)]
        async with connected(listener) as peer:
            assert await peer.closed() == "a frame came that has no place here"


async def test_a_peer_that_does_not_acknowledge_stops_the_sender_at_its_window() -> None:
    received = Receiving()
    received.acknowledges.clear()
    async with listens(received, limits=SMALL) as listener, connected(listener) as peer:
        assert peer.limits.window_messages == 10
        sending = asyncio.create_task(peer.send(message(seq) for seq in range(1, 1001)))
        await eventually(lambda: len(received.messages) == 10)
        assert peer.unacknowledged == (10, 140)
        assert not sending.done()
        received.acknowledges.set()
        await asyncio.gather(sending, all_acknowledged(peer, 1000))
    assert [each.seq for each in received.messages] == [*range(1, 1001)]


async def test_the_window_has_bytes_and_one_larger_message_alone() -> None:
    received = Receiving()
    received.acknowledges.clear()
    async with listens(received, limits=SMALL) as listener, connected(listener) as peer:
        sizes = [1500, 1500, 1500, 40_000, 10, 49_000]
        sending = asyncio.create_task(peer.send(message(at, bytes(size)) for at, size in enumerate(sizes, 1)))
        await eventually(lambda: len(received.messages) == 2)
        assert peer.unacknowledged == (2, 3020)
        received.acknowledges.set()
        await asyncio.gather(sending, all_acknowledged(peer, len(sizes)))
        with pytest.raises(ValueError, match=r"too large: the limit is 50,000"):
            await peer.send([message(7), message(8, bytes(50_000)), message(9)])
        await all_acknowledged(peer, 7)
    assert [len(each.data) for each in received.messages] == [*sizes, 4]


async def test_refusals_reach_the_sender_with_their_reasons() -> None:
    async def refuse(peer: Peer) -> None:
        while True:
            found = await peer.receive()
            refused = {each.seq: f"no {each.seq} " + "ü" * 600 for each in found if each.seq % 2}
            peer.acknowledge(found[-1].seq, refused)

    async with listens(refuse) as listener, connected(listener) as peer:
        refused = dict[int, str]()
        sending = asyncio.create_task(peer.send(message(seq) for seq in range(1, 501)))
        upto = 0
        while upto < 500:
            upto, more = await peer.acknowledged()
            refused |= more
        await sending
    assert sorted(refused) == [*range(1, 501, 2)]
    assert all(reason.startswith(f"no {seq} üü") for seq, reason in refused.items())


async def test_refusals_that_nobody_reads_stop_the_sender() -> None:
    async def refuse(peer: Peer) -> None:
        while True:
            found = await peer.receive()
            peer.acknowledge(found[-1].seq, {each.seq: "no" for each in found})

    async with listens(refuse) as listener, connected(listener, limits=SMALL) as peer:
        sending = asyncio.create_task(peer.send(message(seq) for seq in range(1, 1001)))
        known = -1
        while known != (known := len(peer._outgoing.refused)) or not known:
            await asyncio.sleep(0.1)
        assert known <= 20
        assert not sending.done()
        await all_acknowledged(peer, 1000)
        await sending


async def test_what_came_before_the_end_is_returned_before_it() -> None:
    received = Receiving()
    received.acknowledges.clear()
    async with listens(received) as listener:
        async with connected(listener) as peer:
            await peer.send([message(1)])
            await eventually(lambda: received.messages)
            await peer.send([message(2), message(3)])
        await eventually(lambda: not received.peers[0].is_open)
        received.acknowledges.set()
        await eventually(lambda: received.ended)
    assert [each.seq for each in received.messages] == [1, 2, 3]
    with pytest.raises(Disconnected):
        await peer.send([message(4)])
    with pytest.raises(Disconnected):
        await peer.acknowledged()


async def test_seqs_must_increase_and_acknowledgements_must_be_of_what_came() -> None:
    came = asyncio.get_running_loop().create_future()

    async def check(peer: Peer) -> None:
        found = await peer.receive()
        for upto, refused in ((found[-1].seq + 1, {}), (0, {}), (found[-1].seq, {found[-1].seq + 1: "no"})):
            with pytest.raises(ValueError, match="is not between"):
                peer.acknowledge(upto, refused)
        peer.acknowledge(found[-1].seq)
        with pytest.raises(ValueError, match="is not between"):
            peer.acknowledge(found[-1].seq)
        came.set_result(found)
        await peer.closed()

    async with listens(check) as listener, connected(listener) as peer:
        with pytest.raises(ValueError, match="seq 2 comes after 2"):
            await peer.send([message(1), message(2), message(2)])
        await all_acknowledged(peer, 2)
        assert [each.seq for each in await came] == [1, 2]


async def test_pings_go_both_ways_and_a_silent_peer_is_left() -> None:
    received = Receiving()
    limits = Limits(ping_seconds=0.01)
    async with listens(received, limits=limits) as listener, connected(listener, limits=limits) as peer:
        await eventually(lambda: peer.round_trip is not None and received.peers[0].round_trip is not None)
    limits = Limits(ping_seconds=0.01, silence_seconds=0.2)
    async with listens(received, limits=limits) as listener, raw(listener) as silent:
        await silent.write(greeting())
        assert await silent.reasons() == ["nothing came for too long"]
    assert received.ended[-1].startswith("nothing came for ")


async def test_a_connector_leaves_a_silent_listener() -> None:
    async def be_silent(peer: Raw) -> None:
        await peer.write(greeting())
        assert await peer.reasons() == ["nothing came for too long"]

    async with impostor(be_silent) as address:
        peer = await connect(address, HERE, OPEN, limits=Limits(ping_seconds=0.01, silence_seconds=0.2))
        assert (await peer.closed()).startswith("nothing came for ")


async def test_the_sender_waits_for_a_peer_that_does_not_read_in_bounded_memory() -> None:
    reads = asyncio.Event()

    async def be_slow(peer: Raw) -> None:
        await peer.write(greeting(Limits(window_messages=10**9, window_bytes=2**50)))
        await reads.wait()

    async with impostor(be_slow) as address:
        peer = await connect(address, HERE, OPEN, limits=Limits(window_messages=10**6, window_bytes=2**30))
        taken = count(1)
        tracemalloc.start()
        try:
            sending = asyncio.create_task(peer.send(message(seq, bytes(10_000)) for seq in taken))
            written = -1
            while written != (written := peer.unacknowledged[0]) or written < 1:
                await asyncio.sleep(0.05)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 50_000_000
        assert not sending.done()
        reads.set()
        with pytest.raises(Disconnected):
            await sending


async def test_pongs_and_acknowledgements_are_joined_while_a_peer_does_not_read() -> None:
    """A flood of pings makes no flood in our memory."""
    paused, joined = asyncio.Event(), asyncio.Event()

    async def pause(peer: Peer) -> None:
        peer.pause_writing()  # as asyncio calls it
        paused.set()
        found = list[MessageFrame]()
        while len(found) < 3:
            found += await peer.receive()
        peer.acknowledge(1, {1: "no"})
        peer.acknowledge(2)
        peer.acknowledge(3, {3: "neither"})
        await eventually(lambda: peer._unanswered == 999)
        assert peer._transport is not None
        assert peer._transport.get_write_buffer_size() == 0
        joined.set()
        peer.resume_writing()
        await peer.closed()

    async with listens(pause) as listener, raw(listener) as peer:
        await peer.write(greeting())
        await eventually(paused.is_set)
        await peer.write(frame_of([message(1), message(2), message(3)]))
        await peer.write(b"".join(frame(Kind.PING, number) for number in range(1000)))
        await eventually(joined.is_set)
        found = list[tuple[int, bytes]]()
        async for kind, body in peer.frames():
            found.append((kind, body))
            if kind == Kind.PONG:
                break
    (_, acknowledged), (_, pong) = found[1:]
    assert acknowledged_in(acknowledged) == (3, {1: "no", 3: "neither"})
    assert number_in(pong) == 999


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "version"),
        (HEADER.pack(VERSION + 1, Kind.HELLO, 10), "version"),
        (HEADER.pack(VERSION, Kind.HELLO, 4097), "too large"),
        (HEADER.pack(VERSION, Kind.HELLO, 2**32 - 1), "too large"),
        (frame(Kind.HELLO, None), "its hello is none"),
        (HEADER.pack(VERSION, Kind.HELLO, 4000) + b"\x91" * 4000, "not msgpack"),
        (frame_of([message(1)]), "no place in the handshake"),
        (frame(Kind.PROOF, b"x" * 32), "no place in the handshake"),
        (HEADER.pack(VERSION, 9, 1) + b"\xc0", "no place in the handshake"),
    ],
)
async def test_strangers_are_refused_with_a_reason_and_counted(data: bytes, why: str) -> None:
    told = list[tuple[str, str]]()
    async with (
        listens(on_refused=lambda _, host, reason: told.append((host, reason))) as listener,
        raw(listener) as peer,
    ):
        await peer.write(data)
        (reason,) = await peer.reasons()
        assert why in reason
        await eventually(lambda: told)
        assert told == [("127.0.0.1", reason)]
        assert listener.counts == {"version" if why == "version" else "protocol": 1}
        assert not listener.peers


async def test_a_stranger_that_goes_is_counted() -> None:
    async with listens() as listener:
        async with raw(listener) as peer:
            await peer.write(greeting()[:50])
        await eventually(lambda: listener.counts == {"left": 1})


@pytest.mark.parametrize("already", [0, 20])
async def test_a_handshake_that_takes_too_long_is_ended(already: int) -> None:
    """Slow loris: bytes that come one by one do not prolong it."""
    async with listens(security=SHARED, limits=BRIEF) as listener, raw(listener) as peer:
        data = hello(HERE, Limits(), wanted=listener.addresses[0], has_secret=True)
        await peer.write(data[:already])
        dripping = asyncio.create_task(drip(peer, data[already:]))
        assert {*await peer.reasons()} <= {"the handshake took too long"}  # a reset may overtake the reason
        dripping.cancel()
        await eventually(lambda: listener.counts == {"too slow": 1})


async def drip(peer: Raw, data: bytes) -> None:
    for place in range(len(data) - 1):
        await peer.write(data[place : place + 1])
        await asyncio.sleep(0.01)


async def test_a_hello_without_a_proof_is_ended_in_time() -> None:
    async with listens(security=SHARED, limits=BRIEF) as listener, raw(listener) as peer:
        await peer.write(hello(HERE, Limits(), wanted=listener.addresses[0], has_secret=True))
        assert await peer.reasons() == ["the handshake took too long"]
        await eventually(lambda: listener.counts == {"too slow": 1})


async def test_strangers_are_bounded_and_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_STRANGERS_OF_A_HOST", 5)
    async with listens(limits=Limits(handshake_seconds=600)) as listener:
        idle = [await asyncio.open_connection(*listener.addresses[0].split(":")) for _ in range(12)]
        await eventually(lambda: listener.counts["too many"] == 7)
        assert len(listener._serving) == 5
        with pytest.raises(Disconnected):
            await connect(listener.addresses[0], HERE, OPEN)
        for _, writer in idle:
            writer.close()
        await eventually(lambda: listener.counts["left"] == 5)
        async with connected(listener):
            assert listener.counts == {"too many": 8, "left": 5, "accepted": 1}
    assert not listener._strangers


async def test_a_listener_that_closes_waits_for_no_stranger() -> None:
    listener = await listen("127.0.0.1:0", THERE, OPEN, Receiving(), limits=Limits(handshake_seconds=600))
    async with raw(listener) as stranger:
        await eventually(lambda: listener._strangers)
        async with asyncio.timeout(60):
            await listener.close()
        assert await stranger.reasons() == []
    assert not listener._strangers


async def test_peers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_PEERS", 2)
    async with listens() as listener, connected(listener), connected(listener):
        async with connected(listener) as third:
            assert await third.closed() == "the other side says: too many connections"
        assert listener.counts == {"accepted": 2, "too many": 1}


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (SHARED, Security.shared("another secret of 16 bytes"), "the shared secret is another"),
        (SHARED, OPEN, "expected no shared secret"),
        (OPEN, SHARED, "expected a shared secret"),
    ],
)
async def test_peers_with_other_secrets_are_refused(ours: Security, theirs: Security, why: str) -> None:
    async with listens(security=theirs) as listener:
        with pytest.raises(Refused, match=why) as caught:
            await connect(listener.addresses[0], HERE, ours)
        assert str(caught.value).startswith(f"{listener.addresses[0]}: ")
        assert SECRET not in str(caught.value)
        await eventually(lambda: listener.counts == {"secret": 1})


async def test_a_listener_is_known_by_the_address_that_it_was_given() -> None:
    """Also by a name, with the same port for IPv4 and IPv6; who dials that proves the secret for it."""
    for advertised, host in (("", "localhost"), ("127.0.0.1:0", "127.0.0.1")):
        listener = await listen("localhost:0", Identity(advertised, b"t" * 16), SHARED, Receiving())
        port = listener.addresses[0].removeprefix("localhost:")
        assert {each.getsockname()[1] for each in listener._sockets} == {int(port)}
        assert listener.identity.address == f"{host}:{port}"
        peer = await connect(listener.identity.address, HERE, SHARED)
        other = "127.0.0.1" if host == "localhost" else "localhost"
        with pytest.raises(Refused, match=f"{other}:{port} was dialled, but who answers is {host}:{port}"):
            await connect(f"{other}:{port}", HERE, SHARED)
        peer.close()
        await listener.close()


async def test_addresses_that_do_not_answer_are_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Disconnected, match=f"{nobody}: .*refused"):
            await connect(nobody, HERE, OPEN)
        taken.listen(1)
        with pytest.raises(Disconnected, match=f"{nobody}: no answer within 0.3 s|took too long"):
            await connect(nobody, HERE, OPEN, limits=BRIEF)
        with pytest.raises(OSError, match="in use"):
            await listen(nobody, HERE, OPEN, Receiving())
    for wrong in ("localhost", "localhost:x", "localhost:70000", "a b:1", "", "tcp://a:1"):
        with pytest.raises(ValueError, match="is no address: expected host:port"):
            await connect(wrong, HERE, OPEN)
    for reach in (connect("10.0.0.1:1", HERE, OPEN), listen("0.0.0.0:0", HERE, OPEN, Receiving())):
        with pytest.raises(ValueError, match="not on loopback"):
            await reach


LIES = {
    "more than the window": (frame_of([message(seq) for seq in range(1, 12)]), "more than the window allows"),
    "more bytes than the window": (
        frame_of([message(1, bytes(3000)), message(2, bytes(3000))]),
        "more than the window allows",
    ),
    "too large": (frame_of([message(1, bytes(60_000))]), "a message of 60,010 bytes is too large: the limit is 50,000"),
    "a huge length": (HEADER.pack(VERSION, Kind.MESSAGES, 2**31), "a frame of 2,147,483,648 bytes is too large"),
    "repeated": (frame_of([message(1)]) * 2, "the seq of a message does not increase"),
    "reordered": (frame_of([message(2), message(1)]), "the seq of a message does not increase"),
    "acknowledges what was not sent": (acknowledgements(1, {}), "it acknowledges what was not sent"),
    "refuses what was not sent": (acknowledgements(1, {1: "no"}), "it acknowledges what was not sent"),
    "another hello": (greeting(), "a frame came that has no place here"),
    "a proof": (frame(Kind.PROOF, b"x" * 32), "a frame came that has no place here"),
    "no number": (frame(Kind.PING, "x"), "a ping without a number"),
    "no reason": (frame(Kind.BYE, 5), "a bye without a reason"),
    "deep": (HEADER.pack(VERSION, Kind.ACKNOWLEDGED, 60_000) + b"\x91" * 60_000, "not msgpack"),
    "unknown kind": (HEADER.pack(VERSION, 77, 1) + b"\xc0", "a frame came that has no place here"),
    "version": (HEADER.pack(2, Kind.PING, 1) + b"\x01", "it speaks version 2 of the protocol"),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_authenticated_peer_that_lies_is_cut_off(lie: str) -> None:
    received = Receiving()
    async with listens(received, limits=SMALL) as listener, raw(listener) as peer:
        data, reason = LIES[lie]
        await peer.write(greeting() + data)
        (told,) = await peer.reasons()
        assert reason in told
        await eventually(lambda: received.ended)
        assert received.ended == [told]
        async with connected(listener) as honest:
            await honest.send([message(1)])
            await all_acknowledged(honest, 1)


ACKNOWLEDGED_LIES = {
    "twice": acknowledgements(2, {}) * 2,
    "back": acknowledgements(2, {}) + acknowledgements(1, {}),
    "never sent": acknowledgements(4, {}),
    "refused before": acknowledgements(2, {}) + frame(Kind.ACKNOWLEDGED, (3, [(1, "no")])),
    "refused, never sent": frame(Kind.ACKNOWLEDGED, (3, [(3, "no"), (2, "no"), (7, "no")])),
}


@pytest.mark.parametrize("lie", ACKNOWLEDGED_LIES)
async def test_a_listener_that_lies_about_what_it_has_is_left(lie: str) -> None:
    async def behave(peer: Raw) -> None:
        await peer.write(greeting())
        async for kind, body in peer.frames():
            if kind == Kind.MESSAGES and messages_in(body)[0][-1].seq == 3:
                await peer.write(ACKNOWLEDGED_LIES[lie])

    async with impostor(behave) as address:
        peer = await connect(address, HERE, OPEN)
        await peer.send([message(1), message(2), message(3)])
        with pytest.raises(Refused, match=r"it acknowledges|it refuses|a frame of acknowledgements"):
            await all_acknowledged(peer, 3)


async def test_a_connection_cut_at_any_byte_loses_nothing_that_was_acknowledged() -> None:
    sent = [message(seq, b"x" * seq) for seq in range(1, 6)]
    stream = greeting() + frame_of(sent[:2]) + frame_of(sent[2:])
    received = Receiving()

    def has_ended(before: int) -> bool:
        return len(received.ended) + listener.counts["left"] > before

    async with listens(received) as listener:
        for cut in range(0, len(stream), 3):
            received.messages.clear()
            before = len(received.ended) + listener.counts["left"]
            async with raw(listener) as peer:
                await peer.write(stream[:cut])
                peer.writer.write_eof()
                acknowledged = [
                    acknowledged_in(body) async for kind, body in peer.frames() if kind == Kind.ACKNOWLEDGED
                ]
            await eventually(partial(has_ended, before))
            assert received.messages == sent[: len(received.messages)]
            assert max((each.upto for each in acknowledged), default=0) <= len(received.messages)
        assert cut > len(stream) - 4


async def test_random_peers_leave_the_listener_in_order() -> None:
    """Valid frames, cut, doubled, swapped and with flipped bits; the seed is in the message of a failure."""
    seed = random.randrange(2**32)
    dice = random.Random(seed)
    received = Receiving()
    descriptors = psutil.Process().num_fds()
    async with listens(received, limits=SMALL) as listener:
        for _ in range(150):
            pieces = [greeting(), *(frame_of([message(seq, dice.randbytes(seq))]) for seq in range(1, 9))]
            pieces += [frame(Kind.PING, 1), acknowledgements(1, {}), frame(Kind.PONG, 1)]
            for _ in range(dice.randrange(4)):
                at, other = dice.randrange(len(pieces)), dice.randrange(len(pieces))
                piece = bytearray(pieces[at])
                match dice.randrange(4):
                    case 0:
                        pieces[at], pieces[other] = pieces[other], pieces[at]
                    case 1:
                        pieces.insert(other, pieces[at])
                    case 2:
                        pieces[at] = bytes(piece[: dice.randrange(len(piece) + 1)])
                    case 3 if piece:
                        piece[dice.randrange(len(piece))] ^= 1 << dice.randrange(8)
                        pieces[at] = bytes(piece)
            async with raw(listener) as peer:
                await peer.write(b"".join(pieces))
                if dice.random() < 0.5:
                    peer.writer.write_eof()
                    async for _ in peer.frames():
                        pass
        received.messages.clear()
        async with connected(listener) as honest:
            await honest.send([message(1)])
            await all_acknowledged(honest, 1)
        assert message(1) in received.messages, seed
        await eventually(lambda: not listener.peers and not listener._strangers)
    await eventually(lambda: psutil.Process().num_fds() <= descriptors)
