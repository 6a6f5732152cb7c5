"""Errors have one fate, an outage is logged once for each reason, and a link opens again what is lost."""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,
)
from structlog.testing import capture_logs
from structlog.types import EventDict

from penstock.base.errors import Disconnected, NotDurable, Refused, Unavailable, Unsuitable, WrongCall, WrongType
from penstock.base.log import Log
from penstock.core.backoff import Backoff
from penstock.core.link import (
    OTHER_SERVER,
    SILENT_LOSSES,
    Fate,
    Link,
    LostReply,
    Outage,
    Pause,
    again,
    describe,
    fate,
    kind_of,
    passes,
)
from tests.support.harness import eventually

SHA = "879bab6b9588a8b5e80d24bdfd32dc46cf140b2d"
AT_ONCE = Backoff((0.001,))


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


GONE, ELSEWHERE, WAITS, REFUSED = Fate.GONE, Fate.ELSEWHERE, Fate.WAITS, Fate.REFUSED


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ConnectionError("Connection closed by server."), GONE),
        (TimeoutError("Timeout reading from socket"), GONE),
        (ConnectionRefusedError(111, "refused"), GONE),
        (EOFError(), GONE),
        (Disconnected("the peer went"), GONE),
        (LostReply("no reply for 2 s"), GONE),
        (ReadOnlyError("You can't write against a read only replica."), ELSEWHERE),
        (ResponseError("UNBLOCKED force unblock from blocking operation, instance state changed"), ELSEWHERE),
        (ResponseError("READONLY You can't write against a read only replica. script: 1"), ELSEWHERE),
        (ResponseError("@user_script: 3: -READONLY You can't write against a read only replica."), ELSEWHERE),
        (MasterDownError("Link with MASTER is down and replica-serve-stale-data is set to 'no'."), ELSEWHERE),
        (BusyLoadingError("Redis is loading the dataset in memory"), ELSEWHERE),
        (MovedError("3999 127.0.0.1:6381"), ELSEWHERE),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), WAITS),
        (ResponseError("MISCONF Errors writing to the AOF file"), WAITS),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), WAITS),
        (ResponseError("BUSY Redis is busy running a script."), WAITS),
        (ResponseError("upstream not ready"), WAITS),
        (InvalidResponse('Protocol error, got "H" as reply type byte'), WAITS),
        (WrongType("in holds a set"), WAITS),
        (NotDurable("not confirmed"), WAITS),
        (Refused("a message of 1 GB"), WAITS),
        (NoPermissionError("this user has no permissions to run the 'eval' command"), REFUSED),
        (ResponseError("The user executing the script can't run this command or subcommand"), REFUSED),
        (ResponseError("CROSSSLOT Keys in request don't hash to the same slot"), REFUSED),
        (ResponseError("unknown command 'BLMOVE', with args beginning with: "), REFUSED),
        (ResponseError("wrong number of arguments for 'blmove' command"), REFUSED),
        (ResponseError("Error running script (call to f_1): @user_script:3: oops"), REFUSED),
        (ResponseError("SELECT is not allowed in cluster mode"), REFUSED),
        (ResponseError("value is not an integer or out of range"), REFUSED),
        (WrongCall("expected a name"), REFUSED),
        (Unsuitable("the server is Redis 5.0"), REFUSED),
        (KeyError("x"), Fate.BUG),
    ],
    ids=repr,
)
def test_each_error_has_one_fate(error: Exception, expected: Fate) -> None:
    assert fate(error) is fate(ExceptionGroup("tasks", [error])) is expected
    assert passes(error) == (expected in (GONE, ELSEWHERE, WAITS) and not isinstance(error, OSError | EOFError))


def test_a_refused_login_passes_once_one_was_accepted() -> None:
    error = AuthenticationError("invalid username-password pair or user is disabled.")
    assert (fate(error), fate(error, was_open=True)) == (REFUSED, ELSEWHERE)
    assert (passes(error), passes(error, was_connected=True)) == (False, True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (caused(ConnectionError("Error 111 connecting"), ConnectionRefusedError(111, "refused")), "ECONNREFUSED"),
        (caused(ConnectionError("Error 113 connecting"), OSError(113, "No route to host")), "EHOSTUNREACH"),
        (caused(ConnectionError("Error -2"), socket.gaierror(-2, "Name or service not known")), "name"),
        (TimeoutError("Timeout connecting to server"), "silent"),
        (caused(ConnectionError("x"), ConnectionResetError(104, "reset")), "lost"),
        (ConnectionError("Connection closed by server."), "lost"),
        (LostReply("the server closed the connection"), "lost"),
        (ConnectionError(f"{OTHER_SERVER}closed"), f"{OTHER_SERVER}lost"),
        (ReadOnlyError("You can't write"), "replica"),
        (ResponseError("UNBLOCKED force unblock"), "replica"),
        (BusyLoadingError("loading"), "BusyLoadingError"),
        (WrongType("in holds a set"), "in holds a set"),
    ],
    ids=repr,
)
def test_errors_of_one_reason_are_of_one_kind(error: Exception, expected: str) -> None:
    assert kind_of(error) == expected


def test_what_tls_says_is_the_reason() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    assert kind_of(caused(ConnectionError("Error 1"), error)).startswith("tls ")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            f"command not allowed when used memory > 'maxmemory'. script: {SHA}, on @user_script:11.",
            "command not allowed when used memory > 'maxmemory'.",
        ),
        ("LOADING Redis is loading the dataset in memory", "LOADING Redis is loading the dataset in memory"),
        ("", "ResponseError"),
    ],
)
def test_where_in_a_script_the_server_refused_is_left_out(words: str, expected: str) -> None:
    assert describe(ResponseError(words)) == expected


def said(errors: list[Exception]) -> list[EventDict]:
    """Return what is logged of an outage with these errors."""
    with capture_logs() as lines:
        outage = Outage(Log("test"), "server away", "server back", server="here")
        for error in errors:
            outage.begins(error)
        outage.over()
        outage.over()
    return [*lines]


@pytest.fixture(autouse=True)
def _structured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("structlog.is_configured", lambda: True)


REFUSES = caused(ConnectionError("Error 111"), ConnectionRefusedError(111, "refused"))


@pytest.mark.parametrize(
    ("errors", "reasons"),
    [
        ([ConnectionError("closed")], []),
        ([ConnectionError("closed"), REFUSES, REFUSES], ["Error 111"]),
        ([REFUSES, BusyLoadingError("loading"), REFUSES], ["Error 111", "loading"]),
        ([ConnectionError("closed"), ConnectionError("closed again")], ["closed again"]),
        ([ResponseError("UNBLOCKED force"), ReadOnlyError("a replica")], ["UNBLOCKED force"]),
    ],
)
def test_each_reason_is_said_once_and_a_connection_that_is_only_lost_is_not(
    errors: list[Exception], reasons: list[str]
) -> None:
    lines = said(errors)
    assert [line["reason"] for line in lines if line["event"] == "server away"] == reasons
    assert [line["event"] for line in lines[len(reasons) :]] == ["server back"] * bool(reasons)
    assert all(line["server"] == "here" for line in lines)


def test_what_nobody_expected_is_said_with_its_traceback() -> None:
    (line, _) = said([KeyError("x")])
    assert "KeyError: 'x'" in line["exception"]


def calls(*results: object) -> Callable[[], Awaitable[Any]]:
    left = [*results]

    async def call() -> Any:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    return call


async def test_a_call_is_repeated_until_it_succeeds_or_fails_for_good() -> None:
    mended = list[tuple[str, bool]]()

    async def mend(error: Exception, is_news: bool) -> None:
        mended.append((str(error), is_news))

    outage = Outage(Log("test"))
    call = calls(ConnectionError("one"), Pause(ConnectionError("two"), 0.001), 7)
    assert await again(call, outage, mend=mend, backoff=AT_ONCE) == 7
    assert mended == [("one", False), ("two", True)]
    assert outage.reason is None
    with pytest.raises(WrongCall, match="no"):
        await again(calls(REFUSES, WrongCall("no")), outage, backoff=AT_ONCE)
    with pytest.raises(KeyError):
        await again(calls(KeyError("a bug")), outage, backoff=AT_ONCE)
    with pytest.raises(Unavailable, match=r"^Error 111$"):
        await again(calls(REFUSES), outage, most=0)


async def test_a_pause_ends_with_the_order_to_stop() -> None:
    stop, endless = asyncio.Event(), Backoff((1e9,))
    task = asyncio.create_task(again(calls(REFUSES, 7), Outage(None), until=stop, backoff=endless))
    await asyncio.sleep(0)
    stop.set()
    assert await asyncio.wait_for(task, 60) == 7


class Thing:
    """Something to keep open: ``opens`` says what happens at each attempt."""

    def __init__(self, *opens: object, **options: Any) -> None:
        self.opened, self.shut_down, self.changes = 0, 0, list[str]()
        self._results = [*opens]
        given: dict[str, Any] = {"backoff": AT_ONCE, "stable": 0.001, "changed": self._note} | options
        self.link = Link(self._open, given.pop("shut", self._shut), Outage(Log("test"), "away", "back"), **given)

    def _note(self, error: Exception | None) -> None:
        self.changes.append("up" if error is None else str(error))

    async def _open(self) -> None:
        self.opened += 1
        found = self._results.pop(0) if self._results else None
        if callable(found):
            found = await found(self)
        if isinstance(found, Exception):
            raise found

    async def _shut(self) -> None:
        self.shut_down += 1

    async def __aenter__(self) -> "Thing":
        self.link.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()


async def test_what_is_lost_is_opened_again_and_those_who_wait_hear_of_it() -> None:
    async with Thing(REFUSES) as thing:
        assert thing.link.is_up is None
        assert await thing.link.wait_up(60)
        thing.link.lost(ConnectionError("it went"))
        assert not thing.link.is_up
        assert await thing.link.wait_up(60)
    assert (thing.opened, thing.changes) == (3, ["Error 111", "up", "it went", "up", "it was closed"])


@pytest.mark.parametrize(("losses", "away"), [(3, 0), (4, 1)])
async def test_parts_that_are_lost_one_after_the_other_are_no_outage(losses: int, away: int) -> None:
    """A proxy ends idle connections that were opened one after the other; but none may be lost for ever."""
    lost = ConnectionError("it went")
    with capture_logs() as lines:
        async with Thing(None, *[lost] * (losses - 1)) as thing:
            await eventually(lambda: thing.link.outage._unsaid == SILENT_LOSSES)
            thing.link.lost(lost)
            assert await thing.link.wait_up(60)
    assert [line["event"] for line in lines].count("away") == away


async def test_what_is_lost_while_it_is_opened_is_not_up() -> None:
    async def lose(thing: Thing) -> None:
        thing.link.lost(ConnectionError("too early"))

    async with Thing(lose) as thing:
        await eventually(lambda: thing.opened == 2 and thing.link.is_up)
    assert thing.changes == ["too early", "up", "it was closed"]


async def test_what_goes_at_once_again_and_again_is_opened_ever_later() -> None:
    pauses = list[int]()

    class Noted(Backoff):
        def delay_after(self, failed: int) -> float:
            pauses.append(failed)
            return 0.0

    async def go(thing: Thing) -> None:
        asyncio.get_running_loop().call_soon(thing.link.lost, ConnectionError("it went"))

    async with Thing(go, go, go, go, backoff=Noted(), stable=1e9) as thing:
        await eventually(lambda: thing.opened == 5)
    assert pauses == [1, 2, 3, 4]


async def test_an_open_that_hangs_is_given_up_and_all_of_it_shut() -> None:
    async def hang(_: Thing) -> None:
        await asyncio.Event().wait()

    async with Thing(hang, within=0.01) as thing:
        assert await thing.link.wait_up(60)
        assert thing.shut_down == 1
    assert thing.changes[0] == "no reply while connecting"


@pytest.mark.parametrize(
    "error", [ReadOnlyError("a replica"), AuthenticationError("changed"), KeyError("a bug")], ids=repr
)
async def test_what_is_elsewhere_is_shut_to_be_found_anew_and_a_bug_goes_on(error: Exception) -> None:
    with capture_logs() as lines:
        async with Thing(error) as thing:
            assert await thing.link.wait_up(60)
            assert thing.shut_down == 1
    assert ("exception" in lines[0]) == isinstance(error, KeyError)


@pytest.mark.parametrize("slips", ["shut", "changed"])
async def test_a_slip_of_its_owner_is_said_and_it_is_opened_again(slips: str) -> None:
    left = [1, 1]

    def changed(error: Exception | None) -> None:
        if left and error:
            raise KeyError(left.pop())

    async def shut() -> None:
        changed(ReadOnlyError("a replica"))

    with capture_logs() as lines:
        async with Thing(ReadOnlyError("a replica"), **{slips: locals()[slips]}) as thing:
            assert await thing.link.wait_up(60)
            with suppress(KeyError):
                thing.link.lost(ReadOnlyError("a replica"))
            await eventually(lambda: thing.opened == 3 and thing.link.is_up)
    assert any("KeyError" in line.get("exception", "") for line in lines)


async def test_an_error_that_ends_it_is_heard_and_is_the_last() -> None:
    async with Thing(WrongCall("refused"), ends=lambda error: isinstance(error, WrongCall)) as thing:
        await eventually(lambda: thing.link.is_up is False)
        assert not await thing.link.wait_up(0.01)
        assert (thing.opened, str(thing.link.reason)) == (1, "refused")


async def test_it_is_looked_at_while_it_is_up_and_what_that_raises_is_its_loss() -> None:
    looks = calls(None, ConnectionError("silent"), None)

    async def look() -> None:
        if thing.changes.count("up") == 1:
            await looks()

    async with Thing(look=look, every=0.001) as thing:
        await eventually(lambda: thing.opened == 2 and thing.link.is_up)
    assert thing.changes[:3] == ["up", "silent", "up"]


@pytest.mark.parametrize("opens", [[], [REFUSES] * 9], ids=["up", "away"])
async def test_it_is_closed_in_any_state(opens: list[object]) -> None:
    thing = Thing(*opens, backoff=Backoff((1e9,)))
    await thing.link.close()
    async with thing:
        await eventually(lambda: thing.opened == 1)
    assert thing.link.is_up is False
    assert thing.changes[-1] in ("it was closed", "Error 111")
