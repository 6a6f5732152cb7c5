"""``penstock.sync``: the same lists, blocking."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import Unavailable, WrongCall
from penstock.outbox import Outbox
from penstock.sync import Lists, Portal
from tests.support.harness import PATIENCE, until


@pytest.fixture
def lists(here: Any, redis_url: str) -> Iterator[Lists]:
    with Lists(redis_url, lease=2) as opened:  # renewed several times a second
        yield opened


def renewals(here: Any, lists: Lists) -> Callable[[], bool]:
    """Return a function that says whether all leases have been renewed since this call."""
    vars(lists)["_inner"].server.lease = 3_600

    def are_renewed() -> bool:
        return all(end / 1e6 > time.time() + 1_800 for _, end in here.zscan_iter("orders:consumers"))

    assert not are_renewed()
    return are_renewed


def test_messages_are_pushed_taken_and_settled(here: Any, lists: Lists) -> None:
    sent = [b"%d" % number for number in range(3_000)]
    assert lists["orders"].push_many(sent) == 3_000
    lists["orders"].push("last")
    taken = list[bytes]()
    for message in lists["orders"].messages():
        with message:
            message.also_push("results", message.body)
            taken.append(message.body)
        if message.body == b"last":
            break
    assert taken == [*sent, b"last"]
    assert here.lrange("results", 0, -1)[::-1] == taken
    assert here.keys() == [b"results"]


def test_an_exception_puts_the_message_back_and_a_break_the_rest(here: Any, lists: Lists) -> None:
    lists["orders"].push_many(["a", "b", "c"])

    def handle() -> None:
        for message in lists["orders"].messages():
            with message:
                assert message.body != b"b"

    with pytest.raises(AssertionError):
        handle()
    assert here.lrange("orders", 0, -1) == [b"c", b"b"]
    for message in lists["orders"].messages():
        with message:
            pass
        break
    assert here.lrange("orders", 0, -1) == [b"c"]
    assert here.keys() == [b"orders"]


def test_a_computation_longer_than_the_lease_keeps_it(here: Any, redis_url: str, lists: Lists) -> None:
    lists["orders"].push("a")
    for message in lists["orders"].messages():
        with message:
            are_renewed, end = renewals(here, lists), time.monotonic() + PATIENCE
            while not are_renewed():  # by the thread of the library
                sum(range(10_000_000))
                assert time.monotonic() < end
        break
    assert here.keys() == []


def test_a_signal_ends_the_loop(here: Any, redis_url: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Lists(redis_url, stop_signals=[signal.SIGTERM]) as lists:
        interrupting = threading.Thread(target=signal_while_it_waits, args=(here, signal.SIGTERM))
        here.config_resetstat()
        interrupting.start()
        for message in lists["orders"].messages():
            raise AssertionError(message)
        assert "cmdstat_client|unblock" in here.info("commandstats"), "it ends before its BLMOVE would"
        interrupting.join()
    assert signal.getsignal(signal.SIGTERM) == before


def signal_while_it_waits(here: Any, number: signal.Signals) -> None:
    until(lambda: here.info("clients")["blocked_clients"])
    os.kill(os.getpid(), number)


def test_an_interrupt_while_it_waits_leaves_nothing(here: Any, lists: Lists) -> None:
    thread = threading.Thread(target=signal_while_it_waits, args=(here, signal.SIGINT))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        next(lists["orders"].messages())
    thread.join()
    until(lambda: here.keys() == [])


@pytest.mark.parametrize("is_end", [False, True])
def test_what_another_thread_waits_for_ends_with_the_portal(*, is_end: bool) -> None:
    """A call says so; the end of a loop has nothing left to do."""
    portal, told, begun = Portal(), list[str](), threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            portal.finish(wait) if is_end else portal(wait())
        except (WrongCall, asyncio.CancelledError) as error:
            told.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(PATIENCE)
    portal.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert told == ([] if is_end else ["the thread that does the work has ended"])


def test_requests_are_answered(here: Any, lists: Lists) -> None:
    policy = {"messageTimeout": 10, "messageExpire": 100, "attempts": 3, "backoff": "[1]", "source": "in", "out": "out"}
    here.hset(
        "shop:policy", mapping=policy | {"done": "shop:done", "res": "res", "eventCapacity": 0, "replyExpire": 60}
    )
    here.lpush("out", '{"meta": {"id": "a"}}', "5")
    for request in lists.work("shop").requests():
        with request:
            assert lists.run(request.touch(5)) is None, "it has no record"
            if request.meta:
                request.answer({"price": 7})
        if not request.meta:
            break
    answer, done = json.loads(here.lpop("res")), json.loads(here.lpop("shop:done"))
    assert answer.pop("meta").keys() == {"id", "work"}
    assert (answer, done["xid"], done.keys()) == ({"price": 7}, 5, {"xid", "work"})


def test_a_loop_that_is_never_ended_does_no_harm(here: Any, redis_url: str) -> None:
    with Lists(redis_url) as lists:
        lists["orders"].push("a")
        loop = lists["orders"].messages()
        next(loop)
    assert here.keys() == [b"orders"]
    loop.close()  # type: ignore[attr-defined]


def test_an_outbox_of_another_event_loop_is_refused(redis_url: str, tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="expected a data directory"):
        Lists(redis_url, outbox=Outbox(datadir=tmp_path))  # type: ignore[arg-type]


def test_errors_come_through(lists: Lists) -> None:
    with pytest.raises(WrongCall, match="bytes or text"):
        lists["orders"].push(7)  # type: ignore[arg-type]
    with Lists("redis://127.0.0.1:1", patience=0.2) as nowhere, pytest.raises(Unavailable):
        nowhere["orders"].push("a")

    async def inside() -> None:
        lists["orders"].push("a")

    with pytest.raises(WrongCall, match="would wait for ever"):
        lists.run(inside())


def test_what_is_pushed_may_come_slowly(here: Any, redis_url: str, lists: Lists) -> None:
    """The iterable runs in the caller's thread: leases are renewed meanwhile."""

    def slowly() -> Iterator[bytes]:
        yield b"x"
        until(renewals(here, lists))
        yield b"y"

    lists["orders"].push("a")
    for message in lists["orders"].messages():
        with message:
            assert lists["other"].push_many(slowly()) == 2
        break


def test_stop_signals_need_the_main_thread(redis_url: str) -> None:
    lists = Lists(redis_url, stop_signals=[signal.SIGTERM])
    lists.stop()  # before it begins
    raised = list[Exception]()

    def enter() -> None:
        try:
            lists.__enter__()
        except WrongCall as error:
            raised.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])
    assert "penstock" not in [each.name for each in threading.enumerate()]


def test_an_interpreter_ends_with_a_loop_half_done_and_forks_inside_handlers(redis_url: str) -> None:
    program = """
import os, sys
from penstock.outbox import Outbox
from penstock.sync import Lists, Portal
lists = Lists(sys.argv[1], lease=2)
lists.__enter__()
lists["orders"].push_many(["a", "b"])
loop = lists["orders"].messages()
with next(loop):
    if (child := os.fork()) == 0:
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
print("end")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program, redis_url], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert ended.stdout == "end\n"


FORKS = """
import os, signal, sys
from penstock.base.errors import WrongCall
from penstock.outbox import Outbox
from penstock.sync import Bus, Jobs, Lists
url = sys.argv[1]

def child(call, *, ends_by=0):
    if (pid := os.fork()) == 0:
        signal.alarm(int(float(sys.argv[2])))
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            call()
        except WrongCall as error:
            assert "another process" in str(error), error
            os._exit(0)
        except BaseException as error:
            print(call.__name__, repr(error))
        os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert status == ends_by, (call.__name__, status)

def leaves():
    try:
        with Lists(url, stop_signals=[signal.SIGTERM]) as lists, Bus(url) as bus, Jobs(url) as jobs:
            if (pid := os.fork()) == 0:
                raise SystemExit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    except SystemExit as error:
        os._exit(error.code)

def begins_anew():
    with Lists(url) as own:
        own["orders"].push("b")
    raise WrongCall("another process")

leaves()
with Lists(url, stop_signals=[signal.SIGTERM]) as lists, Bus(url) as bus, Jobs(url) as jobs:
    lists["orders"].push("a")
    for message in (loop := lists["orders"].messages()):
        with message:
            child(lambda: lists["orders"].push("x"))
            child(lambda: next(iter(lists["orders"].messages())))
            child(lambda: bus.queue("q").push("x"))
            child(lambda: jobs.producer().send("s", {"a": 1}))
            child(begins_anew)
            child(lambda: signal.raise_signal(signal.SIGTERM), ends_by=signal.SIGTERM)
        loop.close()
print("end")
"""


def test_a_forked_child_works_or_says_why_not_and_never_waits_for_ever(here: Any, redis_url: str) -> None:
    program = [sys.executable, "-c", FORKS, redis_url, str(PATIENCE)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=10 * PATIENCE, check=False)
    assert (ended.stdout, ended.returncode) == ("end\n", 0), ended.stderr
    assert here.lrange("orders", 0, -1) == [b"b"]
