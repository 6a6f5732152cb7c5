"""Channels between Node's busmq and ours, in all four pairings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.bus.node import Peer
from tests.bus.pairs import NODE, PYTHON, Pair, metadata, pairs_of

pytestmark = pytest.mark.asyncio(loop_scope="session")
LOCAL, REMOTE = "bus:queue:channel:local:zoo", "bus:queue:channel:remote:zoo"


@asynccontextmanager
async def both(pair: Pair, **options: Any) -> AsyncIterator[tuple[Peer, Peer]]:
    """Yield the end that connects and the one that listens, with ``options``, once each has heard of the other."""
    async with (
        pair.first("connect", "zoo") as caller,
        pair.second("connect", "zoo", listen=True, **options) as listener,
    ):
        await caller.expect("remote:connect")
        await listener.expect("remote:connect")
        yield caller, listener


async def test_both_ends_talk_leave_come_back_and_end(pair: Pair) -> None:
    async with pair.first("connect", "zoo", ttl=20) as caller, pair.second("connect", "zoo", listen=True) as listener:
        await caller.expect("remote:connect")
        await listener.expect("remote:connect")
        await caller.send("hi ü😀")
        await listener.expect("message", "hi ü😀", 2)
        await listener.send("yo")
        await caller.expect("message", "yo", 2)
        await caller.send("/disconnect")
        await listener.expect("remote:disconnect")
        await caller.send("/connect")
        await listener.expect("remote:connect")
        if pair.names[0] == PYTHON:  # Node has forgotten to forget that the other end was there (BQ-D20)
            await caller.expect("remote:connect")
        await listener.send("again")
        await caller.expect("message", "again", 4)
        await listener.send("/to remote m")
        await listener.expect("message", "m", 5)
        await listener.send("/end")
        await caller.expect("end")
        await listener.expect("disconnect")
        assert caller.events == [
            ("connect",),
            ("remote:connect",),
            ("message", "yo", 2),
            ("disconnect",),
            ("connect",),
            *([("remote:connect",)] if pair.names[0] == PYTHON else []),
            ("message", "again", 4),
            ("disconnect",),
            ("end",),
        ]
        assert listener.events == [
            ("connect",),
            ("remote:connect",),
            ("message", "hi ü😀", 2),
            ("remote:disconnect",),
            ("remote:connect",),
            ("message", "m", 5),
            ("disconnect",),
        ]
        left = await pair.left()
        assert {left.pop(f"{each}:metadata")["source"] for each in (LOCAL, REMOTE)} == {"local"}
        assert left == {f"{LOCAL}:msgid": "5", f"{REMOTE}:msgid": "5"}


async def test_what_is_sent_waits_for_the_other_end(pair: Pair) -> None:
    async with pair.first("connect", "zoo", local="client", remote="server", ttl=20) as client:
        await client.expect("connect")
        for text in ("", ":3:", "c"):
            await client.send(text)
        async with pair.second("connect", "zoo", local="server", remote="client") as server:
            await server.expect("message", "c", 4)
            assert [event for event in server.events if event != ("connect",)] == [
                ("remote:connect",),
                ("message", "", 2),
                ("message", ":3:", 3),
                ("message", "c", 4),
            ]
            await client.expect("remote:connect")
            assert await pair.left() == {
                f"bus:queue:channel:{role}:zoo:{key}": value
                for role, last in (("client", "1"), ("server", "4"))
                for key, value in (("metadata", metadata(ttl=20)), ("msgid", last))
            }


async def test_a_message_that_was_not_acknowledged_comes_again(pair: Pair) -> None:
    async with both(pair, reliable=True) as (caller, listener):
        await caller.send("one")
        await caller.send("two")
        await listener.expect("message", "two", 3)
        await listener.send("/ack 2")
        await listener.send("/disconnect")
        await caller.expect("remote:disconnect")
        await pair.becomes(f"{REMOTE}:toack", [(3, ":2:two")])
    async with pair.second("connect", "zoo", local="remote", remote="local", reliable=True) as successor:
        await successor.expect("message", "two", 3)


async def test_a_control_message_acknowledges_no_message_of_the_user(pair: Pair) -> None:
    """Node acknowledges all before a control message, so what its user had in hand is lost (BQ-D30)."""
    async with both(pair, reliable=True) as (caller, listener):
        await caller.send("in hand")
        await listener.expect("message", "in hand", 2)
        await caller.send("/disconnect")
        await listener.expect("remote:disconnect")
        await caller.send("/connect")
        await caller.expect("connect")
        await caller.send("next")
        await listener.expect("message", "next", 5)
        if pair.names[1] == NODE:
            await pair.becomes(f"{REMOTE}:toack", [(5, ":2:next")])
            return
        await pair.becomes(f"{REMOTE}:toack", [(2, ":2:in hand"), (3, ":3:"), (4, ":1:"), (5, ":2:next")])
        await listener.send("/ack 2")
        await caller.send("last")
        await listener.expect("message", "last", 6)
        await pair.becomes(f"{REMOTE}:toack", [(5, ":2:next"), (6, ":2:last")])


async def test_an_end_that_was_not_acknowledged_is_met_again(pair: Pair) -> None:
    async with both(pair, reliable=True) as (caller, listener):
        await caller.send("in hand")
        await listener.expect("message", "in hand", 2)
        await caller.send("/end")
        await listener.expect("end")
        kept = None if pair.names[1] == NODE else [(2, ":2:in hand"), (3, ":4:")]
        await pair.becomes(f"{REMOTE}:toack", kept)
        await listener.send("/connect")
        await listener.expect("connect")
        if pair.names[1] == PYTHON:
            await listener.expect("message", "in hand", 2)
            await listener.expect("end")


@pytest.mark.parametrize("pair", pairs_of(second=PYTHON), indirect=True, ids="-".join)
async def test_an_end_that_listens_twice_keeps_its_role(pair: Pair) -> None:
    """Node swaps its roles with each call (BQ-D15)."""
    async with both(pair) as (caller, listener):
        await listener.send("/disconnect")
        await caller.expect("remote:disconnect")
        await listener.send("/connect")
        await caller.expect("remote:connect")
        await caller.send("x")
        await listener.expect("message", "x")


async def test_what_is_no_channel_message_is_an_error_and_skipped(pair: Pair) -> None:
    """A digit that is none ends the process of Node (BQ-D16)."""
    bodies = ["", "text"] if pair.names[1] == NODE else ["", "text", ":9:x", ":"]
    async with pair.second("connect", "zoo", listen=True) as listener:
        await listener.expect("connect")
        async with pair.first("push", "channel:remote:zoo") as other:
            for body in [*bodies, ":2:x"]:
                await other.send(body)
            await listener.expect("message", "x")
        assert [event[0] for event in listener.events] == ["connect", *["error"] * len(bodies), "message"]
