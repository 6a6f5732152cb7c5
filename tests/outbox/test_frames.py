"""Frames of the outbox: what is sent comes out, whatever the pieces; everything else is refused."""

import struct
import tracemalloc
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.outbox.frames import (
    CONTROL_BYTES,
    HEADER,
    HEADS,
    HEADS_BYTES,
    STRANGER_BYTES,
    VERSION,
    Acknowledged,
    Kind,
    MessageFrame,
    Reader,
    Violation,
    WrongVersion,
    acknowledged_in,
    acknowledgements,
    frame,
    frame_of,
    messages_in,
    number_in,
    reason_in,
    weight_of,
)
from penstock.outbox.hello import Identity, Limits, hello, hello_in

ID = bytes(range(16))
MESSAGE = MessageFrame(7, ID, ("orders", "é"), b"\x00\xffdata", 1.5)
LARGEST = Limits().largest_body

patient = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
messages = st.builds(
    MessageFrame,
    st.integers(1, 2**63 - 1),
    st.binary(min_size=16, max_size=16),
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=4).map(tuple),
    st.binary(max_size=300),
    st.floats(0, 2**39),
)


def read(pieces: Iterable[bytes], largest: int = LARGEST) -> list[tuple[int, bytes]]:
    reader = Reader(largest)
    return [found for piece in pieces for found in reader.feed(piece)]


def head(**changed: object) -> tuple[object, ...]:
    return tuple({"seq": 1, "id": ID, "keys": ("k",), "sent": 0.0, "size": 1, **changed}.values())


def body_of(heads: object, data: bytes = b"x") -> bytes:
    packed: bytes = msgpack.packb(heads)
    return HEADS.pack(len(packed)) + packed + data


@patient
@given(st.lists(messages, min_size=1, max_size=5), st.lists(st.integers(0, 3000)))
def test_messages_come_out_as_they_went_in_whatever_the_pieces(sent: list[MessageFrame], cuts: list[int]) -> None:
    data = frame_of(sent)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    ((kind, body),) = read(data[start:end] for start, end in pairwise(places))
    found, weights = messages_in(body)
    assert (kind, found) == (Kind.MESSAGES, sent)
    assert weights == [weight_of(each, 2**40) for each in sent]


def test_a_frame_that_is_cut_at_any_byte_waits_for_the_rest() -> None:
    data = frame_of([MESSAGE]) + acknowledgements(9, {3: "no"}) + frame(Kind.PING, 1)
    whole = read([data])
    assert [kind for kind, _ in whole] == [Kind.MESSAGES, Kind.ACKNOWLEDGED, Kind.ACKNOWLEDGED, Kind.PING]
    for cut in range(len(data)):
        before = read([data[:cut]])
        assert before == whole[: len(before)]
        assert len(before) < len(whole)
        assert read([data[:cut], data[cut:]]) == whole
    assert read(data[place : place + 1] for place in range(len(data))) == whole


@patient
@given(
    st.dictionaries(st.integers(1, 200), st.text(st.characters(exclude_categories=["Cs"]), max_size=600), max_size=80)
)
def test_acknowledgements_come_out_in_order_with_all_refusals(refused: dict[int, str]) -> None:
    found = [acknowledged_in(body) for _, body in read([acknowledgements(200, refused)])]
    assert [each.upto for each in found] == sorted({each.upto for each in found})
    assert found[-1].upto == 200
    joined = {seq: reason for each in found for seq, reason in each.refused.items()}
    assert joined.keys() == refused.keys()
    assert all(len(reason) == min(500, len(refused[seq])) for seq, reason in joined.items())
    assert all(reason.isprintable() for reason in joined.values())
    assert all(before.upto < min(after.refused, default=201) for before, after in pairwise(found))


@pytest.mark.parametrize("first", [0, 2, ord("G"), 0x16, 255])
def test_another_version_or_protocol_is_refused_at_its_first_header(first: int) -> None:
    with pytest.raises(WrongVersion, match="expected 1"):
        read([bytes([first]) + b"ET / HTTP/1.1\r\n"])


@pytest.mark.parametrize(
    ("kind", "largest", "length"),
    [
        (Kind.HELLO, STRANGER_BYTES, STRANGER_BYTES + 1),
        (Kind.MESSAGES, STRANGER_BYTES, STRANGER_BYTES + 1),
        (Kind.PING, LARGEST, CONTROL_BYTES + 1),
        (99, LARGEST, CONTROL_BYTES + 1),
        (Kind.MESSAGES, LARGEST, LARGEST + 1),
        (Kind.MESSAGES, LARGEST, 2**32 - 1),
    ],
)
def test_a_length_above_the_limit_is_refused_before_the_body_comes(kind: int, largest: int, length: int) -> None:
    with pytest.raises(Violation, match="too large"):
        read([HEADER.pack(VERSION, kind, length)], largest)
    assert read([HEADER.pack(VERSION, kind, min(largest, CONTROL_BYTES))], largest) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\x00\x00",
        struct.pack(">I", 2**32 - 1) + b"\x90",
        struct.pack(">I", HEADS_BYTES + 1) + bytes(HEADS_BYTES + 2),
        body_of([]),
        body_of({}),
        body_of([[]]),
        body_of(5),
        body_of([head(seq=0)]),
        body_of([head(seq=-1)]),
        body_of([head(seq=2**63)]),
        body_of([head(seq=True)]),
        body_of([head(seq=1.0)]),
        body_of([head(seq="1")]),
        body_of([head(id=b"short")]),
        body_of([head(id="0123456789abcdef")]),
        body_of([head(keys=())]),
        body_of([head(keys="k")]),
        body_of([head(keys=(b"k",))]),
        body_of([head(keys=(("k",),))]),
        body_of([head(keys=("k" * 65_533,))]),
        body_of([head(keys=("",) * 1001)]),
        body_of([head(sent=-1.0)]),
        body_of([head(sent=float("nan"))]),
        body_of([head(sent="now")]),
        body_of([head(size=-1)]),
        body_of([head(size=2)]),
        body_of([head(size=-1), head(seq=2, size=2)]),
        body_of([head(size=0)]),
        body_of([head(size=2**31)]),
        body_of([head(size=True)]),
        body_of([(*head(), 1)]),
        body_of([head()[:4]]),
        body_of([head()], b""),
        body_of([head()], b"xy"),
        HEADS.pack(3) + b"\x91\xc1\x00x",
        HEADS.pack(4) + b"\xdd\xff\xff\xff" + b"x",
        HEADS.pack(3) + b"\x90\x90\x90",
    ],
)
def test_what_is_no_frame_of_messages_is_refused(body: bytes) -> None:
    with pytest.raises(Violation):
        messages_in(body)


def test_the_heads_that_the_others_differ_from_are_accepted() -> None:
    assert messages_in(body_of([head()]))[0] == [MessageFrame(1, ID, ("k",), b"x", 0.0)]
    assert messages_in(body_of([head(keys=("k" * 65_532,))]))[1] == [65_537]


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1k", b"\xdc\x00\x01"])
def test_deep_nesting_is_refused(opening: bytes) -> None:
    packed = opening * 20_000 + b"\xc0"
    for reads in (acknowledged_in, reason_in, number_in, hello_in):
        with pytest.raises(Violation):
            reads(packed)
    with pytest.raises(Violation):
        messages_in(HEADS.pack(len(packed)) + packed)


def test_small_frames_do_not_become_large_in_memory() -> None:
    """Heads of many empty lists, which are 56 bytes each in memory, and maps, are bounded as the heads are."""
    packed = b"\xdd" + struct.pack(">I", HEADS_BYTES - 5) + b"\x90" * (HEADS_BYTES - 5)
    tracemalloc.start()
    try:
        with pytest.raises(Violation):
            messages_in(HEADS.pack(len(packed)) + packed + bytes(8_000_000))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 40_000_000


def test_a_reader_holds_no_more_than_what_came() -> None:
    reader = Reader(LARGEST)
    tracemalloc.start()
    try:
        assert list(reader.feed(HEADER.pack(VERSION, Kind.MESSAGES, LARGEST) + b"x")) == []
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 100_000


def test_valid_heads_are_bounded_too() -> None:
    heads = [head(seq=seq, keys=("k" * 300,), size=0) for seq in range(1, 900)]
    with pytest.raises(Violation, match="heads of a wrong length"):
        messages_in(body_of(heads, b""))
    assert len(messages_in(body_of(heads[:700], b""))[0]) == 700


@patient
@given(st.binary(max_size=2000), st.sampled_from([STRANGER_BYTES, LARGEST]))
def test_any_bytes_are_a_frame_a_violation_or_an_unfinished_frame(data: bytes, largest: int) -> None:
    for piece in (data, HEADER.pack(VERSION, data[0] % 9 if data else 0, max(0, len(data) - 1)) + data[1:]):
        try:
            found = read([piece], largest)
        except Violation:
            continue
        assert sum(HEADER.size + len(body) for _, body in found) <= len(piece)
        assert all(is_sound(body) for _, body in found)


@patient
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats()
        | st.text(max_size=9)
        | st.binary(max_size=40),
        lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=8),
        max_leaves=30,
    )
)
def test_any_object_is_accepted_or_a_violation(value: object) -> None:
    packed = msgpack.packb(value, unicode_errors="surrogatepass")
    assert is_sound(packed)
    assert is_sound(HEADS.pack(len(packed)) + packed)


def is_sound(body: bytes) -> bool:
    """Return whether each kind of frame with this body is refused as it must be, or can be sent on as it was read."""
    sound = True
    with suppress(Violation):
        found, weights = messages_in(body)
        sound &= messages_in(frame_of(found)[HEADER.size :]) == (found, weights)
    with suppress(Violation):
        acknowledged = acknowledged_in(body)
        sound &= acknowledged.upto >= max(acknowledged.refused, default=1)
    with suppress(Violation):
        sound &= len(reason_in(body)) <= 500
    with suppress(Violation):
        sound &= frame(Kind.PING, number_in(body)) != b""
    with suppress(Violation):
        sound &= len(hello_in(body).identity.store) == 16
    return sound


@pytest.mark.parametrize(
    "changed",
    [
        {"address": "nowhere"},
        {"address": "a:70000"},
        {"address": "a b:1"},
        {"address": f"{'a' * 300}:1"},
        {"address": "a:1\n"},
        {"address": None},
        {"wanted": "\x1b[2J:1"},
        {"store": b""},
        {"store": "0123456789abcdef"},
        {"nonce": b"short"},
        {"secret": 1},
        {"messages": 0},
        {"bytes": -1},
        {"largest": "much"},
    ],
)
def test_a_hello_with_a_wrong_field_is_refused(changed: dict[str, object]) -> None:
    ((kind, body),) = read([hello(Identity("shop.example:7300", ID), Limits(), wanted="", has_secret=False)])
    found = hello_in(body)
    assert (kind, found.identity, found.limits) == (Kind.HELLO, Identity("shop.example:7300", ID), Limits())
    fields = msgpack.unpackb(body)
    assert hello_in(msgpack.packb(fields | {"later": 1})).identity == found.identity
    with pytest.raises(Violation, match="hello"):
        hello_in(msgpack.packb(fields | changed))
    with pytest.raises(Violation, match="hello"):
        hello_in(msgpack.packb({name: value for name, value in fields.items() if name not in changed}))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (MESSAGE._replace(seq=0), "seq"),
        (MESSAGE._replace(id=b"x"), "16 bytes"),
        (MESSAGE._replace(keys=()), "a key"),
        (MESSAGE._replace(keys=("k",) * 1001), "1,000 keys"),
        (MESSAGE._replace(keys=("k" * 70_000,)), "65,536 bytes"),
        (MESSAGE._replace(data=bytes(1000)), "1,016 bytes is too large: the limit is 1,015"),
        (MESSAGE._replace(keys=("\ud800",)), "surrogates"),
    ],
)
def test_what_no_peer_would_take_is_not_sent(message: MessageFrame, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        weight_of(message, 1015)


def test_reasons_cannot_control_a_terminal() -> None:
    ((_, body),) = read([frame(Kind.BYE, "\x1b[2Jno\nINFO forged" + "x" * 600)])
    assert reason_in(body) == "?[2Jno?INFO forged" + "x" * 482
    ((_, body),) = read([frame(Kind.ACKNOWLEDGED, (3, [(2, "no\r\n")]))])
    assert acknowledged_in(body) == Acknowledged(3, {2: "no??"})


@pytest.mark.parametrize(
    "body", [(1,), (1, {}), (0, []), (2, [(3, "x")]), (2, [(1, 1)]), (2, [1]), (True, []), ("1", [])]
)
def test_what_is_no_acknowledgement_is_refused(body: object) -> None:
    with pytest.raises(Violation):
        acknowledged_in(msgpack.packb(body))
