"""What vpush sends for its messages, how much at a time, and that it arrives."""

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.core.once import Dead, Outgoing
from penstock.core.raw_connection import Packed
from penstock.testing.server import EmbeddedServer
from penstock.tracking.dead_letters import Letter
from services.vpush import encoding
from services.vpush.encoding import COMPRESSIBLE_PART, LENGTH_BYTES, MAGIC, Encoder, Unsendable, packed, unpacked
from services.vpush.window import BATCHES, INITIAL_BYTES, MIN_BYTES, SendWindow
from tests.reliability.proxy import Proxy, ProxyConnection, received, send
from tests.support.harness import until
from tests.support.vpush import KEYS, Line, logged, made, numbered

MIB: Final = 1_048_576
SMALL_LIMIT: Final = 10_000
"""Largest message size (bytes) in tests that do not need large messages."""
UNCOMPRESSED_BYTES: Final = int(SMALL_LIMIT * COMPRESSIBLE_PART)
"""Bytes of it for messages and their lengths, before compression."""
NO_ENVELOPE: Final = "expected a JSON object, whose meta.hops counts the links"
quick: Final = settings(deadline=None, max_examples=100)


def prepared(messages: list[bytes], first: int = 1, largest: int = SMALL_LIMIT, **more: Any) -> Outgoing:
    """Return what is sent for ``messages`` under the settings ``more``."""
    return Encoder(made(**more), largest)(first, messages, len(Packed.of(messages).data))


def random_bytes(size: int, seed: int = 0) -> bytes:
    """Return bytes that cannot be compressed."""
    return random.Random(seed).randbytes(size)


def size_of(part: list[bytes]) -> int:
    return sum(LENGTH_BYTES + len(message) for message in part)


def refusal(message: bytes) -> tuple[str, str]:
    with pytest.raises(Unsendable) as unsendable:
        unpacked(message)
    reason, words = unsendable.value.args
    return reason, words


@pytest.mark.parametrize("messages", [[b"one", b"", b"\0\xff"], [b""], numbered(5_000)])
def test_messages_that_need_nothing_are_the_very_list_that_was_given(messages: list[bytes]) -> None:
    going, dead = prepared(messages, largest=MIB)
    assert going is messages
    assert dead == []


def test_many_that_are_larger_together_than_a_message_may_be_all_go() -> None:
    messages = [bytes(10)] * 5
    assert prepared(messages, largest=10) == (messages, [])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_message_that_is_too_large_is_dead_by_its_number_and_the_others_go(place: int) -> None:
    others = [bytes(10), b""]
    messages = [*others[:place], bytes(11), *others[place:]]
    dead = [Dead(41 + place, "tooLarge", "11 bytes, where the other server takes 10")]
    assert prepared(messages, first=41, largest=10) == (others, dead)


def test_where_all_are_too_large_nothing_goes() -> None:
    going, dead = prepared([bytes(11)] * 3, first=7, largest=10)
    assert going == []
    assert [letter.number for letter in dead] == [7, 8, 9]


odd_sizes = st.one_of(
    st.integers(0, UNCOMPRESSED_BYTES),
    st.integers(UNCOMPRESSED_BYTES - 2 * LENGTH_BYTES, UNCOMPRESSED_BYTES),
    st.integers(0, 2),
)
incompressible = st.builds(random_bytes, odd_sizes, st.integers(0, 3))
batches = st.lists(st.one_of(st.binary(max_size=50), incompressible), min_size=1, max_size=12)


@quick
@given(batches)
@example([b""])
@example([b"", b"", b""])
@example([random_bytes(UNCOMPRESSED_BYTES)])
@example([random_bytes(UNCOMPRESSED_BYTES), b"", random_bytes(UNCOMPRESSED_BYTES - LENGTH_BYTES)])
def test_what_is_packed_unpacks_to_the_same_in_parts_that_the_other_server_takes(messages: list[bytes]) -> None:
    going, dead = prepared(messages, compression="zstd")
    parts = [unpacked(part) for part in going]
    assert dead == []
    assert [message for part in parts for message in part] == messages
    assert prepared(going, unpack=True) == (messages, [])
    assert all(len(part) <= SMALL_LIMIT for part in going)
    assert all(size_of(part) <= UNCOMPRESSED_BYTES or len(part) == 1 for part in parts)
    assert all(size_of([*part, following[0]]) > UNCOMPRESSED_BYTES for part, following in pairwise(parts))


def test_parts_of_random_bytes_are_not_larger_than_the_least_that_a_server_may_take() -> None:
    full = int(MIB * COMPRESSIBLE_PART)
    messages = [
        random_bytes(full, 1),
        *(random_bytes(300_000, seed) for seed in range(10)),
        random_bytes(full, 2),
    ]
    going, dead = prepared(messages, largest=MIB, compression="zstd")
    assert dead == []
    assert [message for part in going for message in unpacked(part)] == messages
    assert [len(unpacked(part)) for part in going] == [1, 3, 3, 3, 1, 1]
    assert max(map(len, going)) <= MIB


def test_what_can_be_compressed_is_smaller_on_its_way() -> None:
    (part,), _ = prepared(numbered(500), compression="zstd")
    assert len(part) < len(b"".join(numbered(500))) / 3


def test_of_those_that_are_compressed_one_too_large_is_dead_and_the_others_go() -> None:
    (part,), dead = prepared([b"before", bytes(UNCOMPRESSED_BYTES + 1), b"after"], first=5, compression="zstd")
    assert unpacked(part) == [b"before", b"after"]
    assert dead == [
        Dead(6, "tooLarge", f"{UNCOMPRESSED_BYTES + 1} bytes, where the other server takes {UNCOMPRESSED_BYTES}")
    ]


def test_where_none_is_left_to_compress_nothing_goes() -> None:
    assert prepared([bytes(UNCOMPRESSED_BYTES + 1)], compression="zstd").messages == []


def framed(data: bytes) -> bytes:
    return MAGIC + zstandard.ZstdCompressor().compress(data)


def claiming(size: int, frame: bytes) -> bytes:
    """Return a small ``frame`` whose header claims a content of ``size`` bytes."""
    magic, body = frame[:4], frame[6:]
    return MAGIC + magic + b"\xe0" + size.to_bytes(8, "little") + body


ONE: Final = packed([b"one"])
FRAME: Final = ONE[len(MAGIC) :]
GARBAGE: Final = {
    "nothing": b"",
    "another message": b"one",
    "another version": b"penstock:zstd:2\n" + FRAME,
    "the frame alone": FRAME,
    "no frame": MAGIC,
    "no frame but text": MAGIC + b"garbage garbage garbage",
    "a frame cut off": ONE[:-1],
    "a header cut off": ONE[: len(MAGIC) + 5],
    "something behind the frame": ONE + b"more",
    "a second frame": ONE + FRAME,
    "less than it says": claiming(2, FRAME),
    "more than it says": claiming(8, FRAME),
    "nothing, it says": claiming(0, FRAME),
    "all there is, it says": claiming(2**63, FRAME),
    "unknown, it says": claiming(2**64 - 1, FRAME[:-1]),
    "no message": framed(b""),
    "a length cut off": framed(b"\1\0\0"),
    "a message cut off": framed(b"\1\0\0\0a\2\0\0\0b"),
    "a length that lies": framed(b"\xff\xff\xff\xffa"),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_what_was_not_packed_is_dead_and_the_others_are_unpacked(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_UNPACKED_BYTES", MIB)
    going, (letter,) = prepared([ONE, GARBAGE[kind], packed([b"", b"two"])], first=8, unpack=True)
    assert going == [b"one", b"", b"two"]
    assert (letter.number, letter.reason) == (9, "notPacked")
    assert letter.error


@quick
@given(st.binary(max_size=100))
def test_any_bytes_are_unpacked_or_refused(data: bytes) -> None:
    for message in (data, MAGIC + data, MAGIC + FRAME[:5] + data, framed(data)):
        going, dead = prepared([message], unpack=True)
        assert going or [letter.reason for letter in dead] == ["notPacked"]


def test_a_header_that_was_made_for_the_tests_is_one_that_zstd_reads() -> None:
    assert unpacked(claiming(7, FRAME)) == [b"one"]
    assert zstandard.frame_content_size(claiming(2**63, FRAME)[len(MAGIC) :]) == 2**63


def test_as_many_messages_as_a_batch_has_are_unpacked_and_one_more_is_refused() -> None:
    many = [b""] * encoding.MAX_MESSAGES
    assert made(batch=encoding.MAX_MESSAGES).batch == encoding.MAX_MESSAGES == 5_000
    assert unpacked(packed(many)) == many
    assert refusal(packed([*many, b""])) == ("notPacked", "more than 5000 messages")


def test_no_more_messages_are_looked_for_than_a_batch_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_MESSAGES", 2)
    assert refusal(framed(bytes(3 * LENGTH_BYTES) + b"cut off")) == ("notPacked", "more than 2 messages")


@pytest.mark.parametrize("says", [True, False], ids=["says so", "does not say"])
def test_a_batch_that_would_be_too_large_unpacked_is_refused(says: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_UNPACKED_BYTES", 1_000)

    def compressed(size: int) -> bytes:
        data = size.to_bytes(LENGTH_BYTES, "little") + bytes(size)
        return MAGIC + zstandard.ZstdCompressor(write_content_size=says).compress(data)

    assert unpacked(compressed(1_000 - LENGTH_BYTES)) == [bytes(1_000 - LENGTH_BYTES)]
    reason, words = refusal(compressed(1_001 - LENGTH_BYTES))
    assert reason == "notPacked"
    assert words == "more than 1000 bytes" or not says


def test_a_message_in_a_batch_that_is_too_large_makes_the_batch_dead() -> None:
    going, dead = prepared([packed([b"a", bytes(11)]), packed([b"b"])], first=3, largest=10, unpack=True)
    assert going == [b"b"]
    assert dead == [Dead(3, "tooLarge", "11 bytes, where the other server takes 10")]


def counted(message: bytes, most: int = 3) -> Outgoing:
    return prepared([message], max_hops=most)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"{}", b'{"meta":{"hops":1}}'),
        (b'{"meta": {}}', b'{"meta":{"hops":1}}'),
        (b'{"meta":{"hops":0}}', b'{"meta":{"hops":1}}'),
        (b'{"meta":{"hops":2}}', b'{"meta":{"hops":3}}'),
        (b'{"meta":{"hops":1.0}}', b'{"meta":{"hops":2.0}}'),
        (b'{"meta":{"hops":1,"id":"x"},"hops":9}', b'{"meta":{"hops":2,"id":"x"},"hops":9}'),
        (b'{"a":1,"a":2}', b'{"a":2,"meta":{"hops":1}}'),
    ],
)
def test_a_message_that_may_go_on_has_crossed_one_link_more(message: bytes, expected: bytes) -> None:
    assert counted(message) == ([expected], [])


@pytest.mark.parametrize("hops", ["3", "4", "3.0", "1e999", "9" * 4_000])
def test_a_message_that_has_crossed_enough_is_dropped_without_words(hops: str) -> None:
    assert counted(b'{"meta":{"hops":%s}}' % hops.encode()) == ([], [Dead(1, "maxHops", "")])


@pytest.mark.parametrize("most", [1, 2, 1_000])
def test_a_message_crosses_as_many_links_as_it_may(most: int) -> None:
    message, crossed = b"{}", 0
    while going := counted(message, most).messages:
        (message,), crossed = going, crossed + 1
        assert crossed <= most
    assert crossed == most


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"text",
        b"{",
        b'{"a":1}}',
        b"null",
        b"1",
        b'"meta"',
        b"[]",
        b"[1]",
        b'{"a":%s%s}' % (b"[" * 200_000, b"]" * 200_000),
        *(b'{"meta":%s}' % meta for meta in (b"null", b"1", b"true", b'"hops"', b"[]", b"[0]")),
        *(b'{"meta":{"hops":%s}}' % hops for hops in (b"null", b"true", b"false", b'"1"', b"[]", b"[1]", b"{}")),
        *(b'{"meta":{"hops":%s}}' % hops for hops in (b"NaN", b"-Infinity", b"-1e308", b"-1", b"9" * 5_000)),
    ],
    ids=lambda message: message[:30].decode(errors="replace"),
)
def test_a_message_without_countable_hops_is_dead_and_the_others_go(message: bytes) -> None:
    going, dead = prepared([b"{}", message, b"{}"], first=7, largest=MIB, max_hops=3)
    assert going == [b'{"meta":{"hops":1}}'] * 2
    assert dead == [Dead(8, "noEnvelope", NO_ENVELOPE)]


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**40), 10**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(), max_size=20),
)
names = st.text(st.characters(), max_size=5)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=12
)
envelopes = st.fixed_dictionaries(
    {},
    optional={"meta": st.dictionaries(names.filter(lambda name: name != "hops"), values, max_size=3), "data": values},
)


@quick
@given(envelopes, st.booleans())
@example({"data": "\ud800 alone, \U0001f600 not"}, True)
@example({"data": "Größe ✓", "\udfff": 10**40}, False)
@example({"data": [0.1, 1e308, 5e-324, -0.0, 1.0, 1]}, True)
def test_what_else_a_counted_message_says_stays_and_is_json(envelope: dict[str, Any], escaped: bool) -> None:
    message = json.dumps(envelope, ensure_ascii=escaped).encode(errors="backslashreplace")
    expected = json.loads(message)
    expected.setdefault("meta", {})["hops"] = 1
    (going,), dead = prepared([message], max_hops=1)
    assert dead == []
    assert json.dumps(json.loads(going.decode())) == json.dumps(expected)


def test_half_a_pair_that_came_as_bytes_goes_on_as_json_writes_it() -> None:
    assert counted(b'{"a":"\xed\xa0\x80"}').messages == [b'{"a":"\\ud800","meta":{"hops":1}}']


def test_a_message_that_its_count_makes_too_large_is_dead() -> None:
    (letter,) = prepared([b"{}"], largest=10, max_hops=1).dead
    assert letter == Dead(1, "tooLarge", "19 bytes, where the other server takes 10")


def test_messages_are_counted_before_they_are_compressed() -> None:
    messages = [b'{"meta":{"hops":2}}', b"{}", b"[]"]
    (part,), dead = prepared(messages, compression="zstd", max_hops=2)
    assert unpacked(part) == [b'{"meta":{"hops":1}}']
    assert dead == [Dead(1, "maxHops", ""), Dead(3, "noEnvelope", NO_ENVELOPE)]


def test_a_batch_is_a_part_of_what_may_be_on_its_way() -> None:
    window = SendWindow()
    assert (window.bytes, window.batch_bytes) == (INITIAL_BYTES, INITIAL_BYTES // BATCHES)


@pytest.mark.parametrize(("seconds", "faster"), [(0, True), (2.5, True), (2.51, False), (10, False)])
def test_a_late_answer_makes_it_slower_and_one_in_good_time_faster(seconds: float, faster: bool) -> None:
    window = SendWindow()
    window.arrived(seconds, 10, 2 * INITIAL_BYTES)
    assert (window.bytes > INITIAL_BYTES, window.bytes < INITIAL_BYTES) == (faster, not faster)


def test_what_is_late_follows_from_the_link_timeout() -> None:
    slow, quick = SendWindow(), SendWindow()
    slow.arrived(1, 2, 2 * INITIAL_BYTES)
    quick.arrived(1, 20, 2 * INITIAL_BYTES)
    assert slow.bytes < INITIAL_BYTES < quick.bytes


def test_answers_in_good_time_lead_to_what_is_allowed_and_no_further() -> None:
    window = SendWindow()
    for _ in range(100):
        window.arrived(0, 10, 3 * INITIAL_BYTES)
        assert window.bytes <= 3 * INITIAL_BYTES
    assert window.bytes == 3 * INITIAL_BYTES
    window.arrived(0, 10, INITIAL_BYTES)
    assert window.bytes == INITIAL_BYTES


def test_however_late_the_answers_something_may_be_on_its_way() -> None:
    window = SendWindow()
    for _ in range(100):
        window.arrived(60, 10, INITIAL_BYTES)
        assert window.bytes >= MIN_BYTES
    assert (window.bytes, window.batch_bytes) == (MIN_BYTES, MIN_BYTES // BATCHES)
    window.timed_out()
    assert window.bytes == MIN_BYTES
    window.arrived(0, 10, 1)
    assert window.bytes == MIN_BYTES


def test_from_the_least_it_gets_faster_again() -> None:
    window = SendWindow()
    for _ in range(100):
        window.timed_out()
    assert window.bytes == MIN_BYTES
    for _ in range(100):
        window.arrived(0, 10, INITIAL_BYTES)
    assert window.bytes == INITIAL_BYTES


def test_a_link_that_was_given_up_makes_it_much_slower_than_a_late_answer() -> None:
    given_up, late = SendWindow(), SendWindow()
    given_up.timed_out()
    late.arrived(10, 10, INITIAL_BYTES)
    assert given_up.bytes == INITIAL_BYTES // BATCHES < late.bytes < INITIAL_BYTES


@pytest.fixture
def there() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


@pytest.fixture
def line(server: EmbeddedServer, there: EmbeddedServer, tmp_path: Path) -> Iterator[Line]:
    """Yield a line to a target with the smallest possible limit of message size."""
    with ExitStack() as ends:
        line = Line(server, there, tmp_path, ends)
        line.here.flushall()
        line.there.config_set("proto-max-bulk-len", MIB)
        yield line


def unpacks(line: Line, there: EmbeddedServer, **more: Any) -> None:
    """Start a vpush that unpacks from ``packed`` to ``out`` on the target."""
    names = {"in_": "packed", "pending": "unpacking", "redis_namespace": "demo:unpack"}
    line.up(redis=there.url, out_redis=there.url, unpack=True, **names, **more)


def settled(line: Line, expected: dict[str, int]) -> bool:
    return line.settled() and {metric: line.count(metric) for metric in expected} == expected


def letters(redis: Any, key: str) -> list[dict[str, Any]]:
    """Return the dead letters in ``key``, oldest first."""
    return [Letter(text).fields for text in redis.lrange(key, 0, -1)][::-1]


def test_what_is_too_large_together_and_cannot_be_compressed_arrives_in_parts(
    line: Line, there: EmbeddedServer
) -> None:
    messages = [random_bytes(300_000, seed) for seed in range(30)]
    line.push(messages)
    line.up(compression="zstd", out="packed", batch_bytes=4 * MIB)
    until(lambda: settled(line, {"taken": 30, "delivered": 30}), 60)
    parts = line.arrived("packed")
    assert [message for part in parts for message in unpacked(part)] == messages
    assert int(line.here.hget(KEYS.metric("batches"), "count") or 0) < len(parts) < len(messages)
    unpacks(line, there)
    until(lambda: line.there.llen("out") >= len(messages), 60)
    assert line.arrived() == messages
    assert line.problems() == []


def test_what_has_crossed_enough_links_is_dropped_and_counted_and_the_rest_arrives(line: Line) -> None:
    line.push([b'{"meta":{"hops":%d}}' % hops for hops in (0, 2, 1, 3)] + [b"text"])
    line.up(max_hops=2)
    until(lambda: settled(line, {"taken": 5, "delivered": 2, "dropped": 2, "dead": 1}), 60)
    assert line.arrived() == [b'{"meta":{"hops":1}}', b'{"meta":{"hops":2}}']
    assert [letter["reason"] for letter in letters(line.here, KEYS.dead)] == ["noEnvelope"]
    assert line.problems() == []


BYTES_A_SECOND: Final = 131_072
"""Bytes a second of a slow link."""
PIECE_BYTES: Final = 4_096


class SlowConnection(ProxyConnection):
    """Accepts all bytes and forwards them slowly; drops the rest when the sender closes the connection."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._kept_back = bytearray()
        self._gone = threading.Event()
        super().__init__(proxy, client, server)
        threading.Thread(target=self._pass_on, daemon=True).start()

    def _forward_requests(self) -> None:
        while request := received(self._client):
            self._kept_back += request
        self._gone.set()
        self.cut()

    def _pass_on(self) -> None:
        while not self._gone.wait(PIECE_BYTES / BYTES_A_SECOND):
            piece = bytes(self._kept_back[:PIECE_BYTES])
            del self._kept_back[: len(piece)]
            send(self._server, piece)


class SlowProxy(Proxy):
    def connection(self, client: socket.socket, server: socket.socket) -> ProxyConnection:
        return SlowConnection(self, client, server)


@pytest.mark.slow
def test_a_backlog_that_a_slow_link_cannot_carry_within_its_timeout_arrives_in_order_and_once(
    line: Line, there: EmbeddedServer
) -> None:
    messages = [b"%06d " % number + random_bytes(1_000, number) for number in range(400)]
    timeout = 1
    assert len(b"".join(messages)) > 2 * BYTES_A_SECOND * timeout
    line.push(messages)
    with SlowProxy(there.port) as link:
        service = line.up(out_redis=link.url, link_timeout=timeout)
        line.until_arrived(messages)
        assert logged(service, "waiting"), "the link was never given up: it was too fast for the test"
        assert service.stop() == 0
