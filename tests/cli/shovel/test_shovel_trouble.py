"""penstock shovel: servers that are away, full, or refuse a message."""

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from penstock.testing.server import EmbeddedServer
from tests.cli.given import left, push
from tests.cli.shovel.moving import (
    HALFWAY,
    SMALLEST_LIMIT,
    ReplyGate,
    assert_moved,
    is_long,
    keys,
    kill_once,
    messages_with_trouble,
    shovel,
    shoveling,
    wait_for,
)
from tests.reliability.proxy import Proxy
from tests.reliability.two_servers import assert_same
from tests.support.commandline import ended
from tests.support.harness import PATIENCE, eventually

pytestmark = pytest.mark.slow


async def test_a_signal_while_the_other_server_is_away_leaves_all_for_the_next_call(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    with EmbeddedServer(directory=tmp_path, aof=True) as server, Proxy(server.port) as proxy:
        fault = proxy.fault(HALFWAY.decode(), forward=False)
        async with shoveling(redis_url, "in", proxy.url, "out") as process:
            await wait_for(fault.met)
            os.kill(server.pid, signal.SIGSTOP)
            process.send_signal(signal.SIGINT)
            status, err = await ended(process)
            os.kill(server.pid, signal.SIGCONT)
        assert status == 1
        late, remains = "not everything was put back within 10 s", "what may not have arrived is in in:shovel:"
        assert re.search(rf"penstock: {late}: {remains}[0-9a-f]{{12}}: the same call goes on with it\n", err)
        assert (await shovel(redis_url, "in", proxy.url, "out")).status == 0
        async with Redis.from_url(server.url) as there:
            await assert_moved(redis, there, messages)


async def test_a_server_that_is_away_for_a_moment_is_waited_for(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    await push(redis, [b"one", b"two"])
    with EmbeddedServer(directory=tmp_path) as server:
        async with Redis.from_url(server.url) as there:
            await there.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        async with shoveling(redis_url, "in", server.url, "out") as process:
            await eventually(lambda: _has_begun(redis))
            await asyncio.to_thread(server.kill)
            assert process.stderr is not None
            line = await asyncio.wait_for(process.stderr.readline(), PATIENCE)
            await asyncio.to_thread(server.start)
            assert (await ended(process))[0] == 0
        assert line.startswith(b"penstock: the link is broken, retrying: ")
        async with Redis.from_url(server.url) as there:
            await assert_moved(redis, there, [b"one", b"two"])


async def _has_begun(redis: Redis) -> bool:
    return bool(await redis.keys("*:sequence"))


async def test_a_full_server_is_reported_and_nothing_is_lost(
    redis: Redis, there: Redis, redis_url: str, there_url: str
) -> None:
    await push(redis, [b"one", b"two"])
    await there.config_set("maxmemory", "1")
    try:
        result = await shovel(redis_url, "in", there_url, "out")
    finally:
        await there.config_set("maxmemory", "0")
    assert result.status == 1
    assert "moved to out before this: 0 messages\npenstock: the other server: " in result.error
    assert "maxmemory" in result.error
    assert await left(redis) == [b"one", b"two"]
    assert (await shovel(redis_url, "in", there_url, "out")).status == 0
    await assert_moved(redis, there, [b"one", b"two"])


@pytest.mark.parametrize("words", [[], ["--copy"]])
async def test_a_message_that_is_too_large_for_the_other_server_is_named_and_stays_with_all_behind_it(
    redis: Redis, size_limited: Redis, redis_url: str, there_url: str, words: list[str]
) -> None:
    before = [b"x" * SMALLEST_LIMIT, *messages_with_trouble(3_000)]
    behind = [b"x" * (SMALLEST_LIMIT + 1), b"small", b"x" * (SMALLEST_LIMIT + 2), *messages_with_trouble(1_500)]
    await push(redis, before + behind)
    result = await shovel(redis_url, "in", there_url, "out", *words)
    place, done = (3_002, "copied") if words else (1, "moved")
    assert (result.status, result.out) == (1, b"")
    assert result.error == (
        f"penstock: {done} to out before this: 3,001 messages\n"
        f"penstock: message {place:,} from the old end of in has 1,048,577 bytes, and the other server takes 1,048,576 "
        f"at most: raise its proto-max-bulk-len, or take the message out (LINDEX in -{place} shows it)\n"
    )
    assert_same(await left(size_limited, "out"), before)
    assert_same(await left(redis), before + behind if words else behind)
    assert (await keys(redis), await keys(size_limited)) == ([b"in"], [b"out"])
    assert await redis.lindex("in", -place) == behind[0]
    await size_limited.config_set("proto-max-bulk-len", 2 * SMALLEST_LIMIT)
    await size_limited.delete("out")
    assert (await shovel(redis_url, "in", there_url, "out", *words)).status == 0
    assert_same(await left(size_limited, "out"), before + behind if words else behind)


@pytest.mark.parametrize("words", [[], ["--copy"]])
@pytest.mark.parametrize("forward", [True, False])
async def test_a_link_that_is_cut_before_a_message_that_is_too_large_skips_nothing(
    redis: Redis, size_limited: Redis, redis_url: str, proxy: Proxy, words: list[str], forward: bool
) -> None:
    before, behind = [HALFWAY], [b"x" * (SMALLEST_LIMIT + 1), *messages_with_trouble(100)]
    await push(redis, before + behind)
    fault = proxy.fault(HALFWAY.decode(), forward=forward)
    async with shoveling(redis_url, "in", proxy.url, "out", *words) as process:
        await wait_for(fault.met)
        fault.cut()
        status, err = await ended(process)
    assert (status, err.count("the link is broken")) == (1, 1)
    assert "has 1,048,577 bytes" in err
    assert await left(size_limited, "out") == before
    assert await left(redis) == (before + behind if words else behind)


async def test_a_copy_names_a_message_that_is_too_large_by_its_place_after_others_were_taken(
    redis: Redis, size_limited: Redis, redis_url: str, gate: ReplyGate
) -> None:
    messages = messages_with_trouble(40_000, size=1_000)
    large = b"x" * (SMALLEST_LIMIT + 1)
    await push(redis, [*messages, large])
    async with shoveling(redis_url, "in", gate.url, "out", "--copy") as process:
        await wait_for(gate.closed)
        await redis.rpop("in", 3_000)
        gate.open()
        status, err = await ended(process)
    assert status == 1
    assert "LINDEX in -37001 shows it" in err
    assert await redis.lindex("in", -37_001) == large


async def test_a_user_there_who_may_not_ask_for_the_largest_message_suffices(
    redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    await push(redis, [b"one", b"two"])
    with EmbeddedServer(directory=tmp_path) as server:
        async with Redis.from_url(server.url) as there:
            await there.execute_command("ACL", "SETUSER", "default", "-config")
            assert (await shovel(redis_url, "in", server.url, "out")).status == 0
            await assert_moved(redis, there, [b"one", b"two"])


async def test_a_target_that_is_no_list_any_more_leaves_the_rest_in_its_list(
    redis: Redis, there: Redis, redis_url: str, gate: ReplyGate
) -> None:
    messages = messages_with_trouble(40_000, size=1_000)
    await push(redis, messages)
    async with shoveling(redis_url, "in", gate.url, "out") as process:
        await wait_for(gate.closed)
        async with there.pipeline(transaction=True) as transaction:
            transaction.rename("out", "aside")
            transaction.set("out", "value")
            await transaction.execute()
        gate.open()
        status, err = await ended(process)
    assert status == 1
    assert "moved to out before this: " in err
    assert "the other server: out holds a string, expected a list" in err
    assert_same(await left(there, "aside") + await left(redis), messages)
    assert (await keys(redis), await keys(there)) == ([b"in"], [b"aside", b"out"])


async def test_a_target_that_lost_its_data_is_reported_with_the_way_out(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy
) -> None:
    messages = messages_with_trouble(40_000, size=1_000)
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=True)
    await kill_once(fault.met, redis_url, "in", proxy.url, "out")
    (state,) = [key for key in await keys(redis) if key.endswith(b":sequence")]
    settled = int(await redis.hget(state, "sequence") or 0)
    assert settled
    await there.flushall()
    result = await shovel(redis_url, "in", proxy.url, "out")
    assert result.status == 1
    assert f"HDEL {state.decode()} source sequence" in result.error
    await redis.hdel(state, "source", "sequence")
    assert (await shovel(redis_url, "in", proxy.url, "out")).status == 0
    assert (await left(there, "out"), await keys(redis)) == (messages[settled:], [])


async def test_a_source_that_lost_its_data_is_reported_with_the_way_out(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=True)
    async with shoveling(redis_url, "in", proxy.url, "out") as process:
        await wait_for(fault.met)
        await eventually(lambda: is_long(there, len(messages)))
        process.kill()
        await ended(process)
    pending, state = [key for key in await keys(redis) if key != b"in"]
    await redis.delete(pending)
    await push(redis, [b"new"])
    result = await shovel(redis_url, "in", proxy.url, "out")
    assert result.status == 1
    assert "are not here any more" in result.error
    assert f"HDEL {state.decode()} source sequence" in result.error
