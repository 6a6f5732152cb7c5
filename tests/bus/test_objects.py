"""Rows of methods: what a peer's client is made of, and what one end knows that the other does not."""

import asyncio

import pytest

from penstock.base.errors import Refused, Unsuitable, WrongCall
from penstock.bus import Bus, Peeked, Queue
from penstock.core.objects import rows_of
from services.gateway.access import Access
from services.gateway.faces import FILES, STATIC
from services.gateway.listener import Listener
from services.gateway.peer import Peer
from services.gateway.settings import Settings
from tests.bus.gateway import SECRET, ends, url_of
from tests.bus.raw import raw
from tests.support.harness import eventually


@pytest.mark.parametrize("name", FILES)
def test_the_browsers_client_equals_the_rows(name: str) -> None:
    text = (STATIC / name).read_text()
    assert text == FILES[name](text), "python -m services.gateway.faces writes it anew"


def test_arguments_are_read_as_the_signature_says() -> None:
    row = rows_of(Queue)["peek"]
    assert row.taken([]) == [1]
    assert row.taken(["12", "more"]) == [12]
    for wrong in ("x", 1.5, True, None, [1]):
        with pytest.raises(WrongCall, match=r"^peek: most: expected a whole number, found "):
            row.taken([wrong])
    with pytest.raises(Refused, match=r"^peek: expected a list of texts and ids, found 7$"):
        row.given(7)


@ends
async def test_what_waits_is_seen_and_left_there_here_and_far_away(bus: Bus, gateway: Listener) -> None:
    async with Bus() as remote:
        far = remote.federate(remote.queue("zoo"), url_of(gateway), secret=SECRET)
        near = bus.queue("zoo")
        assert await near.peek() == await far.peek(5) == []
        await near.attach()
        await near.push_many([b"ape", b"\xffbear", b"cat"])
        for queue in (near, far):
            found = await queue.peek(most=2)
            assert [(each.id, each.body) for each in found] == [(1, b"ape"), (2, b"\xffbear")]
            assert all(type(each) is Peeked for each in found)
        assert await near.count() == 3


async def test_a_peek_is_bounded_in_bytes(bus: Bus) -> None:
    queue = bus.queue("zoo")
    await queue.attach()
    await queue.push_many([b"x" * 600_000] * 3)
    assert len(await queue.peek(1_000)) == 2


@ends
async def test_an_older_gateway_is_not_asked_for_what_it_does_not_have(
    gateway: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.listener.VERSION", 1)
    async with Bus() as remote:
        queue = remote.federate(remote.queue("zoo"), url_of(gateway), secret=SECRET)
        with pytest.raises(Unsuitable, match=r"peek needs a gateway of version 2, and \S+ is a gateway of version 1$"):
            await queue.peek()
        assert await queue.count() == 0
    assert gateway.counters["calls"] < 10
    assert gateway.counters["connections"] == 1


def access(*methods: str) -> Access:
    return Access(Settings(redis="redis://localhost", secret=SECRET, methods=[*methods]))


def test_reading_is_allowed_without_writing() -> None:
    allows = access("queue.get_metadata").allows_method
    assert allows("queue", "metadata", "get_metadata")
    assert not allows("queue", "metadata", "set_metadata")
    assert not allows("channel", "metadata", "get_metadata")


@pytest.mark.parametrize("pattern", ["queue.[!m]*", "s*", "queue.s*", "*_*", "push"])
def test_a_pattern_is_of_names_on_the_wire_alone(pattern: str) -> None:
    for name in ("metadata", "get_metadata", "set_metadata"):
        assert not access(pattern).allows_method("queue", "metadata", name)
    assert not access("*_*").allows_method("queue", "pushAll", "push_many")


@ends
async def test_calls_wait_while_the_peer_does_not_read_their_answers(
    gateway: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = asyncio.Event()

    async def room(_: Peer) -> None:
        await reads.wait()

    async with raw(gateway) as peer:
        channel = await peer.create()
        monkeypatch.setattr(Peer, "has_room", False)
        monkeypatch.setattr(Peer, "room", room)
        answer = asyncio.ensure_future(channel.call("count"))
        await eventually(lambda: gateway.counters["calls"] == 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not answer.done()
        reads.set()
        assert await answer == [None, 0]


@ends
async def test_an_answer_that_no_client_takes_is_refused(
    bus: Bus, gateway: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = bus.queue("zoo")
    await queue.attach()
    await queue.push("x" * 2_000)
    async with Bus() as remote:
        far = remote.federate(remote.queue("zoo"), url_of(gateway), secret=SECRET)
        monkeypatch.setattr("services.gateway.served.MAX_LINE", 1_000)
        with pytest.raises(Refused, match=r"peek: the answer has 2,\d+ bytes, at most 1,000 are sent"):
            await far.peek()
        assert await far.count() == 1
    assert gateway.counters["connections"] == 1
