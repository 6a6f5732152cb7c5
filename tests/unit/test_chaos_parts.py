"""The parts of chaos: frames, shapes of commands, injection points, accounts and routes."""

import asyncio
import socket
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import PenstockError
from penstock.base.shape import End, Place, Promise
from penstock.composition.files import read
from penstock.composition.model import Composition, Part
from penstock.core.connection import connect
from penstock.testing.chaos.faults import Injection
from penstock.testing.chaos.frames import Frames, words_of
from penstock.testing.chaos.injection import Kind
from penstock.testing.chaos.messages import Account, Routes, Sink, message, recognised
from penstock.testing.chaos.plan import Chosen, expected, planned
from penstock.testing.chaos.points import Phase, Point, shape_of
from penstock.testing.chaos.proxy import FaultProxy
from penstock.testing.chaos.random_faults import FAULTS
from penstock.testing.chaos.recording import distinct
from penstock.testing.chaos.report import verdict
from penstock.testing.chaos.run import FaultResult, Report
from penstock.testing.server import EmbeddedServer

IN, OUT, LOOSE = Place("in"), Place("out"), Place("loose")
ROUTES = Routes({IN: (Sink(OUT, "once", True, 0), Sink(LOOSE, "at-least-once", False, 0))})

lines = st.binary(max_size=20).filter(lambda data: b"\r" not in data and b"\n" not in data)


def part_from(reads: str, writes: str, promise: Promise) -> Part:
    ends = (End(reads, "in", "reads", "in", "redis://a"), End(writes, "out", "writes", "out", "redis://a"))
    return Part(f"{reads} to {writes}", ends=ends, promise=promise)


def blob(data: bytes) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(data), data)


leaves = st.one_of(
    st.binary(max_size=30).map(blob),
    st.sampled_from([b"$-1\r\n", b"*-1\r\n", b"_\r\n", b"#t\r\n", b",1.5\r\n", b"(123\r\n", b"*0\r\n", b"%0\r\n"]),
    st.integers().map(lambda number: b":%d\r\n" % number),
    lines.map(lambda line: b"+" + line + b"\r\n"),
    lines.map(lambda line: b"-ERR " + line + b"\r\n"),
    st.binary(max_size=9).map(lambda data: b"=%d\r\ntxt:%s\r\n" % (len(data) + 4, data)),
)
frames = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda parts: b"*%d\r\n" % len(parts) + b"".join(parts)),
        st.lists(inner, min_size=1, max_size=4).map(lambda parts: b">%d\r\n" % len(parts) + b"".join(parts)),
        st.lists(inner, max_size=4).map(lambda parts: b"~%d\r\n" % len(parts) + b"".join(parts)),
        st.lists(st.tuples(inner, inner), max_size=3).map(
            lambda pairs: b"%%%d\r\n" % len(pairs) + b"".join(key + value for key, value in pairs)
        ),
        st.tuples(inner, inner).map(lambda pair: b"|1\r\n" + blob(b"ttl") + pair[0] + pair[1]),
    ),
    max_leaves=12,
)


@given(st.lists(frames, max_size=5), st.data())
def test_frames_are_found_whole_wherever_the_input_is_cut(sent: list[bytes], data: st.DataObject) -> None:
    whole, found, splitter = b"".join(sent), list[bytes](), Frames()
    while whole:
        size = data.draw(st.integers(1, len(whole)))
        found += splitter.whole(whole[:size])
        whole = whole[size:]
    assert found == sent


def test_what_is_no_resp_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected a frame"):
        Frames().whole(b"\x16\x03\x01\r\n")


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5))
def test_the_words_of_a_command_are_those_that_were_sent(words: list[bytes]) -> None:
    assert words_of(b"*%d\r\n" % len(words) + b"".join(map(blob, words))) == words


@pytest.mark.parametrize(
    ("words", "shape"),
    [
        ("blmove shop:in shop:pending:12 RIGHT LEFT 10", "BLMOVE shop:in shop:pending:#"),
        ("CLIENT SETNAME penstock", "CLIENT SETNAME penstock"),
        (f"EVALSHA {40 * 'a'} 2 shop:in shop:9 500", "EVALSHA aaaaaaa shop:in shop:#"),
        ("LPUSH shop:out penstock-chaos-00001-0002", "LPUSH shop:out"),
        (f"HGETALL shop:message:xid:{40 * 'b'}", "HGETALL"),
        ("PING", "PING"),
    ],
)
def test_a_command_is_called_the_same_whatever_its_numbers_are(words: str, shape: str) -> None:
    assert shape_of([word.encode() for word in words.split()]) == shape


def test_a_script_has_one_name_whichever_way_it_is_called() -> None:
    source = b"return 1"
    by_source = shape_of([b"EVAL", source, b"1", b"shop:in"])
    assert by_source == "EVAL e0e1f9f shop:in"
    assert (
        shape_of([b"EVALSHA", b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db", b"1", b"shop:in"])
        == "EVALSHA e0e1f9f shop:in"
    )


def test_what_is_asked_for_at_a_stop_or_after_a_kill_counts_only_where_it_is_nowhere_else() -> None:
    def at(phase: Phase, shape: str, after: str = "") -> Point:
        return Point("mover", phase.value, "localhost:6379", shape, after)

    usual = {at(Phase.START, "PING"), at(Phase.FLOW, "EXEC"), at(Phase.START, "EXEC")}
    only = {at(Phase.STOP, "DEL"), at(Phase.RECOVER, "LRANGE", "EXEC")}
    again = {at(Phase.STOP, "EXEC"), at(Phase.RECOVER, "DEL", "EXEC"), at(Phase.RECOVER, "LRANGE", "MULTI")}
    assert distinct(usual | only | again) == usual | only


def account(out: list[int], loose: list[int]) -> Account:
    given = Account()
    given.pushed[IN] = [0, 1, 2, 3]
    given.arrived[OUT], given.arrived[LOOSE] = out, loose
    return given


def test_an_account_knows_what_is_lost_doubled_and_out_of_order() -> None:
    fine = account([0, 1, 2, 3], [0, 1, 2, 3])
    assert (fine.owed(ROUTES, {}), fine.doubled(ROUTES, {}), fine.reordered(ROUTES)) == (0, 0, 0)
    lost = account([0, 1, 3], [0, 1, 2, 3])
    assert lost.lost(ROUTES, {}) == [(OUT, 2)]
    doubled = account([0, 1, 2, 2, 3], [0, 0, 0, 1, 2, 3])
    assert (doubled.doubled(ROUTES, {}), doubled.doubled(ROUTES, {}, broken=True)) == (3, 1)
    behind = account([1, 0, 3, 2], [3, 2, 1, 0])
    assert (behind.reordered(ROUTES), behind.reordered(ROUTES, broken=True)) == (5, 2)


def test_a_list_that_is_fed_in_two_ways_owes_two_copies() -> None:
    assert account([0, 1, 2, 3], [0, 1, 2, 3]).owed(ROUTES, {(IN, OUT): 2}) == 4


def test_a_message_is_known_wherever_its_id_is() -> None:
    assert recognised(message('{"ORDER_ID": "{id}"}', 17, 3).encode()) == (17, 3)
    assert recognised(b'{"reason": "poison", "message": "penstock-chaos-00017-0003"}') == (17, 3)
    assert recognised(b"something else") is None


def test_messages_go_from_external_sources_to_lists_without_a_reader() -> None:
    routes = Routes.of(read(Path("compose/tracked")))
    (source,) = routes.sinks
    assert source.key == "tracked:in"
    sinks = {sink.place.key: sink for sink in routes.sinks[source]}
    assert set(sinks) == {"tracked:archive:kept", "tracked:alert:taken"}
    assert {sink.promise for sink in sinks.values()} == {"at-least-once"}, "there is an mdispatch on the way"
    assert all(sink.again > 3 for sink in sinks.values())
    (sites,) = Routes.of(read(Path("compose/sites"))).sinks.values()
    assert {(sink.place.key, sink.promise) for sink in sites} == {("sites:two", "once"), ("sites:three", "once")}


def test_answers_are_followed_to_the_list_for_them() -> None:
    ((sink,),) = Routes.of(read(Path("compose/web"))).sinks.values()
    assert (sink.place.key, sink.promise) == ("web:replies", "at-least-once")


def test_of_two_ways_to_a_list_the_weaker_promise_holds() -> None:
    parts = (
        part_from("in", "out", "once"),
        part_from("in", "way", "at-least-once"),
        part_from("way", "out", "once"),
    )
    for order in permutations(parts):
        ((sink,),) = Routes.of(Composition(order)).sinks.values()
        assert (sink.place.key, sink.promise) == ("out", "at-least-once")


def test_a_message_without_its_id_is_refused_where_it_stands(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("mover: exec python -m shop.mover\n")
    (tmp_path / "composition.yaml").write_text("programs: {mover: {reads: a, writes: b}}\nchaos:\n  message: ID,40\n")
    (problem,) = read(tmp_path).problems
    assert (problem.line, problem.property) == (3, "chaos.message")
    assert "expected {id} in it" in problem.message


@pytest.mark.parametrize(
    ("word", "chosen"),
    [
        ("kill -9", {"kill -9"}),
        ("kill", {"kill -9", "kill -9 before the command", "kill -9 before the reply", "kill -9 + slow link"}),
        ("cut before the reply", {"cut before the reply"}),
        ("slow", {"slow link", "kill -9 + slow link"}),
    ],
)
def test_a_full_name_selects_one_fault_and_a_part_of_it_several(word: str, chosen: set[str]) -> None:
    faults = [*(kind.value for kind in Kind), *FAULTS, "kill -9 + slow link"]
    choice = Chosen(seed=1, faults=[word])
    assert {fault for fault in faults if choice.has(Injection(1, fault))} == chosen


def test_a_sample_is_drawn_by_the_seed_beside_the_run_without_a_fault() -> None:
    points = [Point("mover", "flow", "localhost:6379", f"LPUSH {place}") for place in range(25)]
    composition = Composition((part_from("in", "out", "once"),))
    everything = planned(composition, points, Chosen(seed=1))
    first, *drawn = planned(composition, points, Chosen(seed=1, sample=30))
    assert (first.fault, len(drawn), len(everything) > 100) == ("no fault", 30, True)
    assert drawn == [each for each in everything if each in drawn], "in the order of the plan"
    assert drawn == planned(composition, points, Chosen(seed=1, sample=30))[1:]
    assert drawn != planned(composition, points, Chosen(seed=2, sample=30))[1:]
    assert planned(composition, points, Chosen(seed=1, sample=1_000)) == everything
    named = planned(composition, points, Chosen(seed=1, sample=3, faults=["cut before the reply"]))
    assert [each.fault for each in named] == ["cut before the reply"] * 3


def test_a_run_takes_at_least_as_long_as_its_slowest_fault() -> None:
    slow = Injection(1, "swallowed", None, None, "1:swallowed:0")
    assert slow.slow
    quick = Injection(2, "SCRIPT FLUSH", None, None, "1:SCRIPT FLUSH:0")
    costs = [expected(Composition(()), [each], 8) for each in (slow, quick)]
    assert expected(Composition(()), [slow, quick, quick], 8) == max(costs) == costs[0]
    assert expected(Composition(()), [quick] * 80, 8) == pytest.approx(10 * costs[1])


def test_a_composition_without_routes_gets_advice(tmp_path: Path) -> None:
    (tmp_path / "Procfile").write_text("mover: exec python -m shop.mover\n")
    with pytest.raises(PenstockError, match=r"composition\.yaml what programs read and write"):
        Routes.of(read(tmp_path))
    said = "programs: {mover: {reads: a, writes: b}}\nchaos: {out: c}\n"
    (tmp_path / "composition.yaml").write_text(said)
    with pytest.raises(PenstockError, match=r"chaos: c: no part .* expected one of a, b"):
        Routes.of(read(tmp_path))


@pytest.mark.parametrize(
    ("doubled", "broken", "said"),
    [
        (0, 0, "nothing was lost, and every promise kept"),
        (7, 0, "nothing was lost, and every promise kept; what was doubled or out of order was so where no more is"),
        (7, 7, "a promise is broken"),
    ],
)
def test_the_verdict_says_why_doubles_may_be_harmless(doubled: int, broken: int, said: str) -> None:
    injection = Injection(1, "SIGTERM", None, None, "7:SIGTERM:0", None)
    result = FaultResult(injection, 0, 0.0, 1.0, True, 0.1, 12, 0, doubled, 0, broken)
    assert verdict(Report(7, [], [result], 1.0)).startswith(said)
    assert verdict(Report(7, [], [result], 1.0, books=["does not agree"])) == "a promise is broken"


async def test_of_a_transaction_that_is_discarded_only_its_ends_are_points(server: EmbeddedServer) -> None:
    """A service tries dozens of commands in discarded transactions to learn its rights: they change nothing."""
    async with FaultProxy(server.port) as proxy, connect(f"redis://{proxy.address}") as client:
        connection = await client.connection_pool.get_connection()
        proxy.seen.clear()
        for end in ("DISCARD", "EXEC"):
            for words in (["MULTI"], ["SET", "key", "1"], ["DEL", "key"], [end], ["PING"]):
                await connection.send_command(*words)
                await connection.read_response()
        await client.connection_pool.release(connection)
        assert proxy.seen == ["MULTI", "DISCARD", "PING", "MULTI", "SET key", "DEL key", "EXEC", "PING"]


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_comes_as_a_proxy_closes_is_closed(server: EmbeddedServer, turns: int) -> None:
    """What nobody has closed is an error at the end of a test."""
    with socket.socket() as client:
        client.setblocking(False)
        async with FaultProxy(server.port) as proxy:
            host, port = proxy.address.split(":")
            with suppress(BlockingIOError):
                client.connect((host, int(port)))
            for _ in range(turns):
                await asyncio.sleep(0)
        assert not proxy.connections
