"""Handlers have their share of the event loop while a backlog arrives."""

import asyncio
from pathlib import Path

import pytest

from penstock.outbox import Message, upcoming
from penstock.outbox.turns import Turns
from tests.outbox.outboxes import LATER, outbox, subscribed
from tests.support.harness import eventually


async def test_one_at_a_time_stores_and_rests_as_long_while_handlers_are_behind() -> None:
    events = list[str]()
    turns = Turns(lambda: True)

    async def store(name: str) -> None:
        async with turns.turn():
            events.append(f"{name} begins")
            await asyncio.sleep(0.05)  # timing: what a store takes
            events.append(f"{name} ends")

    async def handle() -> None:
        while "b ends" not in events:
            await asyncio.sleep(0.005)  # timing: what a handler takes
            events.append("handled")

    await asyncio.gather(store("a"), store("b"), handle())
    order = [each for each in events if each != "handled"]
    assert order == ["a begins", "a ends", "b begins", "b ends"]
    rest = events[events.index("a ends") : events.index("b begins")]
    assert "handled" in rest


async def test_nobody_waits_while_handlers_keep_up() -> None:
    turns = Turns(lambda: False)
    async with turns.turn(), turns.turn():
        pass


async def test_who_stores_in_vain_keeps_nobody_from_its_turn() -> None:
    turns = Turns(lambda: True)
    with pytest.raises(OSError, match="full"):
        async with turns.turn():
            raise OSError("full")
    async with turns.turn():
        pass


async def test_a_backlog_is_handled_while_it_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upcoming, "AHEAD_ROWS", 50)
    rests, handled = list[bool](), set[str]()
    sleep = asyncio.sleep

    async def noted_sleep(seconds: float) -> None:
        rests.append(seconds > 0)
        await sleep(seconds)

    async def handle(message: Message) -> None:
        await sleep(0)
        handled.add(str(message))

    async with outbox(tmp_path / "publisher", reconnects=LATER) as publisher:
        async with outbox(tmp_path / "subscriber") as subscriber:
            address = subscriber.advertise
            await subscribed(subscriber, publisher, "k")
        await asyncio.gather(*(publisher.publish("k", f"{n}" + "x" * 1000) for n in range(3000)))
    monkeypatch.setattr("penstock.outbox.turns.asyncio.sleep", noted_sleep)
    async with (
        outbox(tmp_path / "publisher", publisher.advertise),
        outbox(tmp_path / "subscriber", address) as subscriber,
    ):
        subscriber.every("k", handle)
        await eventually(lambda: len(handled) == 3000)
    assert any(rests)
