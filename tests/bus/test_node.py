"""Programs of peers: that Node's busmq can be installed, driven, and that its end is noticed."""

import pytest

from tests.bus.node import node


async def test_a_program_of_node_pushes_and_consumes(redis_url: str) -> None:
    async with node() as program:
        async with program.peer("consume", "peers", [redis_url]) as consumer:
            await consumer.expect("attached", False)
            async with program.peer("push", "peers", [redis_url], driver="ioredis") as producer:
                await producer.send("ü😀")
                await producer.expect("pushed", 1)
            assert await consumer.expect("message") == ("ü😀", 1)
        with pytest.raises(AssertionError, match=r"expected \('message', 'x'\), found \[\]"):
            await consumer.expect("message", "x", within=0.05)
        await program.kill()
        with pytest.raises(AssertionError, match="it has ended"):
            await consumer.expect("message")
