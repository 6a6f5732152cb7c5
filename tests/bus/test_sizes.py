"""Messages of different sizes: none is lost, and not too many bytes are taken at once."""

import random
from typing import Any

import pytest
from redis.asyncio import Redis

from penstock.bus import Bus
from penstock.bus.scripts import POP, READ
from penstock.core.script import Script
from tests.bus.given import attached, calls

MODES = {"take": {}, "reliable": {"reliable": True}, "read": {"remove": False}}


@pytest.mark.parametrize("mode", MODES)
async def test_messages_of_mixed_sizes_come_whole_and_in_order(bus: Bus, redis: "Redis", mode: str) -> None:
    draw = random.Random(mode)
    bodies = [draw.randbytes(draw.choice([0, 1, 30, 1000, 9000, 40_000])) for _ in range(1500)]
    queue = await attached(bus, *bodies)
    found = [(each.id, each.body) async for each in queue.consume(limit=len(bodies), **MODES[mode])]
    assert found == [*enumerate(bodies, start=1)]
    assert await redis.llen("bus:queue:foo:toack") == (2 * len(bodies) if mode == "reliable" else 0)
    assert await queue.count() == (len(bodies) if mode == "read" else 0)


async def _words(redis: "Redis", script: Script, **named: Any) -> list[bytes]:
    keys = {"metadata": "bus:queue:foo:metadata", "messages": "bus:queue:foo:messages"}
    found = await script(redis, **keys, most=500, bytes=1 << 20, **named)
    return [word for words in found[1 if script is POP else 2 :] for word in words]


@pytest.mark.parametrize("script", [POP, READ], ids=["pop", "read"])
async def test_large_messages_behind_small_ones_are_not_taken_with_them(
    bus: Bus, redis: "Redis", script: Script
) -> None:
    """No command tells the size of what waits: a sample of what may be taken at once has to be looked at."""
    await attached(bus, *[b"small"] * 100, *[b"x" * 900_000] * 20)
    named = {"who": "a", "seconds": 10, "ttl": 30} if script is POP else {"index": 0, "msgid": "msgid", "digest": ""}
    named["last"] = 0
    words = await _words(redis, script, **named)
    assert [len(body) for body in words[1::2]] == [5] * 100 + [900_000] * 2


@pytest.mark.parametrize("script", [POP, READ], ids=["pop", "read"])
async def test_one_script_looks_at_few_messages_whatever_their_sizes(bus: Bus, redis: "Redis", script: Script) -> None:
    """A look at a large message copies it: one each time the script goes on would hold the server for seconds."""
    await attached(bus, *[b""] * 450, *[b"x" * 50_000] * 40)
    named = {"who": "a", "seconds": 10, "ttl": 30} if script is POP else {"index": 0, "msgid": "msgid", "digest": ""}
    await redis.config_resetstat()
    words = await _words(redis, script, last=0, **named)
    assert [len(body) for body in words[1::2]] == [0] * 450 + [50_000] * 21
    assert await calls(redis, "lindex") < 200
