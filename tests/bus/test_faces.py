"""An object here, at another site, and without async: the same calls give the same, right and wrong ones.

So do those whose answer is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any, Final

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from penstock.base.errors import PenstockError, Unauthorized, Unavailable, Unconfirmed, WrongCall
from penstock.bus import Bus
from penstock.sync import Bus as BlockingBus
from services.gateway.access import Access
from services.gateway.creation import CLASSES
from services.gateway.listener import Listener
from services.gateway.served import Served
from services.gateway.settings import Settings
from tests.bus.faces import AT_THE_WRONG_TIME, CALLS, OPEN, WAITS, WRONG, Call, Kind, made
from tests.bus.gateway import SECRET, ends, serving, url_of
from tests.support.harness import eventually


async def outcome(call: Call, thing: Any) -> tuple[str, str]:
    """Return what a call gives, or the class of the error; and what the error says."""
    try:
        found = call(thing)
        found = await found if isinstance(found, Awaitable) else found
    except Exception as error:  # noqa: BLE001  # it is compared
        return type(error).__name__, str(error)
    is_object = type(found).__module__.startswith(("penstock.bus", "penstock.sync"))
    return type(found).__name__.removeprefix("Federated") if is_object else repr(found), ""


async def outcomes(kind: Kind, call: Call, faces: "Faces", *, is_open: bool) -> list[tuple[str, str]]:
    """Return the outcome of a call of an object here, far away, and without async in a thread."""
    found = list[tuple[str, str]]()
    for face in (made(kind, faces.bus), faces.far(kind)):
        await faces.redis.flushall()
        if is_open and kind in OPEN:
            await OPEN[kind](face)
        found.append(await outcome(call, face))
        await face.leave()

    def blocking() -> tuple[str, str]:
        with BlockingBus(faces.url, patience=60) as bus:
            face = made(kind, bus)
            if is_open and kind in OPEN:
                OPEN[kind](face)
            return asyncio.run(outcome(call, face))

    await faces.redis.flushall()
    return [*found, await asyncio.to_thread(blocking)]


@dataclass
class Faces:
    """A bus here and one far away, of the same server."""

    bus: Bus
    remote: Bus
    gateway: Listener
    redis: Redis
    url: str

    def far(self, kind: Kind) -> Any:
        return self.remote.federate(made(kind, self.remote), url_of(self.gateway), secret=SECRET)


@pytest.fixture
def faces(bus: Bus, remote: Bus, gateway: Listener, redis: Redis, redis_url: str) -> Faces:
    return Faces(bus, remote, gateway, redis, redis_url)


@pytest.fixture
async def remote(gateway: Listener) -> AsyncIterator[Bus]:
    async with Bus(patience=60) as connected:
        yield connected


@pytest.mark.parametrize(
    ("kind", "name", "is_open"),
    [
        (kind, name, is_open)
        for kind, calls in CALLS.items()
        for name in calls
        for is_open in (False, True)
        if is_open or name not in WAITS
    ],
)
@ends
async def test_a_call_has_the_same_outcome_here_and_there(kind: Kind, name: str, is_open: bool, faces: Faces) -> None:
    near, far, blocking = [found for found, _ in await outcomes(kind, CALLS[kind][name], faces, is_open=is_open)]
    assert (far, blocking) == (near, near)
    assert near not in ("TypeError", "AttributeError", "ValueError"), "expected one of Penstock's"
    assert (near == "WrongCall") is ((kind, name, is_open) in AT_THE_WRONG_TIME)


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, calls in WRONG.items() for name in calls])
@ends
async def test_a_call_that_makes_no_sense_says_so_here_and_there(
    kind: Kind, name: str, is_open: bool, faces: Faces
) -> None:
    call, word = WRONG[kind][name]
    for error, said in await outcomes(kind, call, faces, is_open=is_open):
        assert error == "WrongCall"
        assert word in said or ("already" if is_open else "before") in said


def test_for_each_method_it_is_said_whether_it_may_run_twice() -> None:
    """What changes more than the object's own state must not."""
    once = {
        "queue": {"push", "pushAll", "flush", "close"},
        "channel": {"send", "sendTo", "end"},
        "pubsub": {"publish"},
        "persistify": set(),
    }
    rows = {kind: CLASSES[kind].ROWS for kind in CLASSES}
    assert {kind: {wire for wire, row in rows[kind].items() if not row.facts.again} for kind in rows} == once


@pytest.mark.parametrize(
    ("kind", "name", "method"),
    [
        ("queue", "flush", "flush"),
        ("queue", "close", "close"),
        ("queue", "push", "pushAll"),
        ("queue", "count", "count"),
        ("queue", "ttl", "ttl"),
        ("queue", "peek", "peek"),
        ("queue", "set_metadata", "metadata"),
        ("queue", "detach", "detach"),
        ("channel", "send", "send"),
        ("channel", "send_to", "sendTo"),
        ("channel", "end", "end"),
        ("channel", "disconnect", "disconnect"),
        ("pubsub", "publish", "publish"),
        ("persistable", "save", "pwrite"),
        ("persistable", "load", "pread"),
    ],
)
@ends
async def test_a_call_whose_answer_is_lost_is_repeated_only_if_it_may_be(
    kind: Kind, name: str, method: str, remote: Bus, gateway: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway carries out the call, and cuts the websocket in place of its answer, the first time."""
    thing = remote.federate(made(kind, remote), url_of(gateway), secret=SECRET)
    if kind in OPEN:
        await OPEN[kind](thing)
    executed = list[str]()
    answer = Served.answer

    def lose(served: Served, call: Any, *values: Any) -> None:
        executed.extend([call.method] if call.method == method else [])
        if executed == [method] and call.method == method:
            gateway.drop_all()
        else:
            answer(served, call, *values)

    monkeypatch.setattr(Served, "answer", lose)
    type_ = "persistify" if kind == "persistable" else kind
    leaves = method in ("detach", "disconnect")
    found, _ = await outcome(CALLS[kind][name], thing)
    if CLASSES[type_].ROWS[method].facts.again:
        assert found != "Unconfirmed"
        assert executed == [method] * (1 if leaves else 2)
    else:
        assert found == "Unconfirmed"
        await eventually(lambda: gateway.counters["connections"] == 2)
        assert executed == [method]


@ends
async def test_a_queue_that_was_closed_without_an_answer_is_not_closed_again_once_somebody_has_attached(
    remote: Bus, gateway: Listener, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = remote.federate(remote.queue("zoo"), url_of(gateway), secret=SECRET)
    await queue.attach()
    monkeypatch.setattr(Served, "answer", lambda *_: gateway.drop_all())
    with pytest.raises(Unconfirmed):
        await queue.close()
    monkeypatch.undo()
    again = bus.queue("zoo")
    await again.attach()
    await again.push("kept")
    await eventually(lambda: queue.is_ready)
    await queue.exists()
    assert await again.count() == 1
    assert not queue.is_attached
    await queue.attach()
    assert await queue.count() == 1


NAMES: Final = [
    ("channel:local:chat", {"channels": []}, False),
    ("channel:local:chat", {"queues": []}, True),
    ("channel:local:chat", {"channels": ["news"]}, False),
    ("channel:local:a:b", {"channels": ["a:b"], "queues": []}, True),
    ("channel:local:chat", {"channels": [], "queues": ["channel:local:*"]}, True),
    ("service:price", {}, True),
    ("service:price", {"queues": ["orders"]}, False),
    ("service:price", {"queues": ["service:price"]}, True),
    ("service:price", {"services": []}, False),
    ("service:price:replyTo:1", {"services": []}, False),
    ("service:price:replyTo:1", {"services": ["price"], "queues": []}, True),
    ("service:other", {"services": ["price"]}, False),
    ("channel", {"channels": []}, True),
    ("channel:local", {"channels": []}, True),
]


@pytest.mark.parametrize(("name", "settings", "allowed"), NAMES)
def test_the_queues_of_channels_and_services_obey_the_lists_of_their_kind(
    name: str, settings: dict[str, Any], allowed: bool
) -> None:
    access = Access(Settings(redis="redis://localhost", secret=SECRET, **settings))
    assert access.allows_name("queue", name) is allowed


@ends
async def test_a_persisted_object_that_is_gone_is_written_again(
    remote: Bus, gateway: Listener, bus: Bus, redis: Redis
) -> None:
    far = remote.federate(made("persistable", remote), url_of(gateway), secret=SECRET)
    for cart in (made("persistable", bus), far):
        await cart.save()
        await redis.flushall()
        cart.value.tea = 2.5  # not saved
        await cart.persist(10**8)
        assert await redis.hgetall("bus:persisted:zoo") == {b"tea": b"1.5"}
        assert await redis.ttl("bus:persisted:zoo") > 10**7
        await cart.unpersist()


async def test_another_ttl_of_a_queue_holds_for_all_that_are_attached(bus: Bus, redis: Redis, redis_url: str) -> None:
    queue = bus.queue("zoo")
    await queue.attach(ttl=60)
    await queue.push("a")
    async with Bus(redis_url) as other:
        await other.queue("zoo").set_metadata({"ttl": 600})
        assert await redis.ttl("bus:queue:zoo:metadata") > 500
        assert await redis.ttl("bus:queue:zoo:messages") > 500
        await other.queue("zoo").set_metadata({"ttl": 30})
        assert await redis.ttl("bus:queue:zoo:metadata") > 500, "whoever is attached comes only so often"
    bus._alive.hurry(queue.instance)
    await eventually(lambda: queue.seconds == 30)
    assert await redis.ttl("bus:queue:zoo:metadata") <= 30


async def test_what_a_peer_hears_names_no_server(redis_url: str) -> None:
    async with serving(redis_url) as gateway:
        where = gateway.bus.instances[0].address
        for error in (
            ConnectionError(f"Error 111 connecting to {where}"),
            PenstockError(f"{where}: away"),
            OSError(2, "No such file", "/var/run/redis.sock"),
            WrongCall("see redis://elsewhere:1/0"),
        ):
            assert gateway.told(error) == "Unavailable: the servers behind the gateway do not answer"
        assert gateway.told(Unauthorized("not here")) == "Unauthorized: not here"
        for text in ("ttl=0", "metadata: expected the name of a field, found 'https://peer'"):
            assert gateway.told(WrongCall(text)) == f"WrongCall: {text}"


async def test_a_peer_does_not_decide_how_many_lines_are_logged(redis_url: str) -> None:
    async with serving(redis_url) as gateway:
        with capture_logs() as lines:
            for number in range(100):
                gateway.told(Unavailable(f"away: {number}"), object="zoo", method="push")
            gateway.told(OSError("other words"))
    assert [line["reason"] for line in lines] == ["Unavailable: away: 0", "OSError: other words"]
    assert (lines[0]["object"], lines[0]["method"]) == ("zoo", "push")
