"""A connection that many share: when it sends."""

from typing import Any

from penstock.core.raw_connection import pack
from penstock.core.wire import MUCH, Reply, Wire
from tests.support.harness import until


async def test_a_large_command_is_sent_while_the_turn_of_the_loop_goes_on(redis_url: str, here: Any) -> None:
    """The server has something to do meanwhile; what was sent before comes before."""
    wire = Wire(redis_url, "test", lambda _: None)
    await wire.open()
    try:
        replies = [Reply() for _ in range(4)]
        for value, reply in zip((b"a", b"b", bytes(MUCH), b"c"), replies, strict=True):
            wire.send(pack([("RPUSH", "sent", value)]), reply)
        until(lambda: here.llen("sent") >= 3)  # without a turn of this loop
        assert here.lrange("sent", 0, 2) == [b"a", b"b", bytes(MUCH)]
        assert [await reply for reply in replies] == [1, 2, 3, 4]
    finally:
        await wire.close()
