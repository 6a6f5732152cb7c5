"""The pool of workers: what one item does to its worker is nothing to the next, and suspects run by themselves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest

from penstock.base.log import Log
from penstock.core.runner import Runner
from tests.support.harness import eventually

Handle = Callable[[str], Awaitable[None]]
Make = Callable[..., Runner[str]]
TOLD: ContextVar[str] = ContextVar("told", default="")


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Return what makes a runner, which ends with the test."""
    made = list[Runner[str]]()

    async def at_once() -> None:
        pass

    def runner(handle: Handle, concurrency: int, **given: Any) -> Runner[str]:
        options: dict[str, Any] = {"counts": lambda item: True, "settled": at_once, "changed": lambda: None}
        made.append(Runner(handle, concurrency, Log("penstock.test"), **(options | given)))
        return made[-1]

    yield runner
    for each in made:
        await each.close()


class Gates:
    """A handler whose items wait until they are let."""

    def __init__(self) -> None:
        self.begun, self.ended = list[str](), list[str]()
        self._gates = dict[str, asyncio.Event]()

    async def __call__(self, item: str) -> None:
        self.begun.append(item)
        gate = self._gates.setdefault(item, asyncio.Event())
        await gate.wait()
        self.ended.append(item)

    def let(self, *items: str) -> None:
        for item in items:
            self._gates[item].set()


async def test_as_many_run_as_may_in_order_and_a_released_one_lets_another_begin(make: Make) -> None:
    gates = Gates()
    runner = make(gates, 2)
    runner.add("abcd")
    await eventually(lambda: gates.begun == ["a", "b"])
    runner.release("a")
    await eventually(lambda: gates.begun == ["a", "b", "c"])
    assert (runner.free, runner.busy) == (0, 3)
    gates.let("b")
    await eventually(lambda: gates.begun == [*"abcd"])
    gates.let("a", "c", "d")
    await runner.idle.wait()
    assert (runner.free, runner.busy) == (2, 0)


async def test_what_was_taken_back_or_forgotten_does_not_begin(make: Make) -> None:
    gates = Gates()
    runner = make(gates, 1)
    runner.add("abc")
    await eventually(lambda: gates.begun)
    assert runner.forget("b")
    assert not runner.forget("a")
    assert runner.take_back() == ["c"]
    gates.let("a")
    await runner.idle.wait()
    runner.add("d")
    await eventually(lambda: gates.begun == ["a", "d"])


@pytest.mark.parametrize("late", [False, True])
async def test_a_cancellation_ends_one_item_and_not_the_next(make: Make, *, late: bool) -> None:
    """Also one that comes as the handler runs its last line, before Python 3.13."""
    handled = list[str]()

    async def handle(item: str) -> None:
        if item == "a":
            task = asyncio.current_task()
            assert task
            task.cancel()
            if not late:
                await asyncio.sleep(0)
        await asyncio.sleep(0) if item != "a" else None
        handled.append(item)

    runner = make(handle, 1)
    runner.add("abc")
    await eventually(lambda: handled[-2:] == ["b", "c"])


async def test_what_one_item_sets_is_nothing_to_the_next(make: Make) -> None:
    seen = list[str]()

    async def handle(item: str) -> None:
        seen.append(TOLD.get())
        TOLD.set(item)

    make(handle, 1).add("abc")
    await eventually(lambda: len(seen) == 3)
    assert seen == [""] * 3


async def test_suspects_run_alone_and_are_settled_before_anything_else_begins(make: Make) -> None:
    gates, settled, asked = Gates(), asyncio.Event(), list[str]()

    async def settle() -> None:
        asked.append("settle")
        await settled.wait()

    runner = make(gates, 2, settled=settle)
    runner.add("a")
    await eventually(lambda: gates.begun == ["a"])
    runner.add("xy", suspects=True)
    runner.add("b")
    assert runner.holds_back
    assert runner.free == 0
    assert runner.take_back(suspects=False) == ["b"]
    runner.add("b")
    await asyncio.sleep(0)
    assert gates.begun == ["a"]
    gates.let("a")
    await eventually(lambda: gates.begun == ["a", "x", "y"])
    gates.let("x", "y")
    await eventually(lambda: asked)
    assert gates.begun == ["a", "x", "y"]
    settled.set()
    await eventually(lambda: gates.begun == ["a", "x", "y", "b"])
    assert not runner.holds_back


async def test_suspects_do_not_wait_for_what_was_given_up(make: Make) -> None:
    gates = Gates()
    runner = make(gates, 2, counts=lambda item: item != "thread")
    runner.add(["thread"])
    await eventually(lambda: gates.begun)
    runner.add(["x"], suspects=True)
    await eventually(lambda: gates.begun == ["thread", "x"])


async def test_handlers_that_do_not_wait_leave_others_their_turns_of_the_event_loop(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = [1.0], list[int]()
    monkeypatch.setattr("penstock.core.runner.monotonic", lambda: clock[0])
    done = list[str]()

    async def handle(item: str) -> None:
        clock[0] += 0.001
        done.append(item)

    runner = make(handle, 20)
    runner.add(map(str, range(200)))
    while len(done) < 200:
        seen.append(len(done))
        await asyncio.sleep(0)
    assert max(after - before for before, after in pairwise(seen)) == 6  # of a millisecond each
