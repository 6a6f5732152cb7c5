"""penstock shovel: nothing is lost or doubled, however the call or its link ends."""

import asyncio
import re
import signal

import pytest
from redis.asyncio import Redis

from penstock.core.once import agree
from penstock.testing.server import EmbeddedServer
from penstock.transfer.move import BACK_BYTES, Move
from tests.cli.given import left, push
from tests.cli.shovel.moving import (
    HALFWAY,
    ReplyGate,
    assert_moved,
    finished,
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
from tests.support.harness import eventually

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("words", [[], ["--copy"]])
@pytest.mark.parametrize("forward", [True, False])
async def test_a_link_that_is_cut_before_or_after_a_reply_loses_and_doubles_nothing(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy, words: list[str], forward: bool
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=forward)
    async with shoveling(redis_url, "in", proxy.url, "out", *words) as process:
        await wait_for(fault.met)
        fault.cut()
        status, out, err = await finished(process)
    assert (status, err.count("the link is broken")) == (0, 1)
    assert b"20,000 messages" in out
    if words:
        assert_same(await left(redis), messages)
        await redis.delete("in")
    await assert_moved(redis, there, messages)


@pytest.mark.parametrize("verb", ["LLEN", "MULTI", "EVALSHA", "EVAL\r", f"{BACK_BYTES}\r"])
@pytest.mark.parametrize("forward", [True, False])
async def test_a_link_to_the_source_that_is_cut_loses_and_doubles_nothing(
    redis: Redis, there: Redis, server: EmbeddedServer, there_url: str, verb: str, forward: bool
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    await redis.script_flush()
    with Proxy(server.port) as proxy:
        fault = proxy.fault(verb, forward=forward)
        async with shoveling(proxy.url, "in", there_url, "out") as process:
            await wait_for(fault.met)
            fault.cut()
            status, err = await ended(process)
        if verb == "LLEN":
            assert (status, await left(redis)) == (1, messages)
            assert f"penstock: cannot reach {proxy.url}" in err
            status = (await shovel(proxy.url, "in", there_url, "out")).status
    assert status == 0
    assert err.count("the link is broken, retrying") == verb.startswith("EVAL")
    await assert_moved(redis, there, messages)


@pytest.mark.parametrize("forward", [True, False])
async def test_a_killed_shovel_is_resumed_by_the_same_call(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy, forward: bool
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=forward)
    await kill_once(fault.met, redis_url, "in", proxy.url, "out")
    pending, state = [key for key in await keys(redis) if key != b"in"]
    assert re.fullmatch(rb"in:shovel:[0-9a-f]{12}", pending)
    assert state == pending + b":sequence"
    last = await shovel(redis_url, "in", proxy.url.replace("redis://", "redis://default:@"), "out")
    assert (last.status, last.error) == (0, "")
    await assert_moved(redis, there, messages)


async def test_the_rest_of_a_shovel_killed_at_its_very_end_is_removed_by_the_next(
    redis: Redis, there: Redis, redis_url: str, there_url: str, proxy: Proxy
) -> None:
    messages = messages_with_trouble(100)
    await push(redis, messages)
    fault = proxy.fault("DEL", "out:from:", forward=False)
    await kill_once(fault.met, redis_url, "in", proxy.url, "out")
    assert len(await keys(there)) == 2
    new = [b"new %d" % number for number in range(10)]
    await push(redis, new)
    # The proxy's URL counts as another target than the server's, so only the same URL resumes the call.
    assert (await shovel(redis_url, "in", proxy.url, "out")).status == 0
    await assert_moved(redis, there, [*messages, *new])


async def test_of_two_at_once_the_later_goes_on_and_the_earlier_is_refused(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=True)
    async with shoveling(redis_url, "in", proxy.url, "out") as earlier:
        await wait_for(fault.met)
        assert (await shovel(redis_url, "in", proxy.url, "out")).status == 0
        await assert_moved(redis, there, messages)
        await push(redis, [b"new"])
        fault.cut()
        status, err = await ended(earlier)
    assert status == 1
    assert "another shovel from in to out has taken over" in err
    assert await left(redis) == [b"new"]
    await redis.delete("in")
    await assert_moved(redis, there, messages)


async def test_many_at_once_lose_and_double_nothing(redis: Redis, there: Redis, redis_url: str, there_url: str) -> None:
    messages = messages_with_trouble(60_000, size=100)
    await push(redis, messages)
    results = await asyncio.gather(*(shovel(redis_url, "in", there_url, "out", "--until-empty") for _ in range(4)))
    for result in results:
        assert result.status == 0 or "another shovel" in result.error or "does not exist" in result.error
    if await keys(redis):
        assert (await shovel(redis_url, "in", there_url, "out")).status == 0
    assert_same(await left(there, "out"), messages)
    assert await keys(redis) == []


async def test_two_targets_share_a_list(redis: Redis, there: Redis, redis_url: str, there_url: str) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    results = await asyncio.gather(*(shovel(redis_url, "in", there_url, out) for out in ("a", "b")))
    assert all(result.status == 0 or "does not exist" in result.error for result in results)
    assert sorted(await left(there, "a") + await left(there, "b")) == sorted(messages)
    assert await keys(redis) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_settles_what_is_on_its_way_and_leaves_the_rest(
    redis: Redis, there: Redis, redis_url: str, gate: ReplyGate, number: signal.Signals
) -> None:
    messages = messages_with_trouble(40_000, size=1_000)
    await push(redis, messages)
    async with shoveling(redis_url, "in", gate.url, "out", "--json") as process:
        await wait_for(gate.closed)
        process.send_signal(number)
        gate.open()
        status, out, err = await finished(process)
    assert (status, err) == (130, "")
    assert b'"interrupted": true' in out
    arrived, rest = await left(there, "out"), await left(redis)
    assert_same(arrived + rest, messages)
    assert rest
    assert f'"messages": {len(arrived)},'.encode() in out
    assert (await keys(redis), await keys(there)) == ([b"in"], [b"out"])


@pytest.mark.parametrize("forward", [True, False])
async def test_what_is_never_answered_is_put_back_unless_it_has_arrived(
    redis: Redis, there: Redis, redis_url: str, proxy: Proxy, forward: bool
) -> None:
    messages = messages_with_trouble()
    await push(redis, messages)
    fault = proxy.fault(HALFWAY.decode(), forward=forward)
    async with shoveling(redis_url, "in", proxy.url, "out") as process:
        await wait_for(fault.met)
        if forward:
            await eventually(lambda: is_long(there, len(messages)))
        process.send_signal(signal.SIGINT)
        status, err = await ended(process)
    assert (status, err) == (130, "")
    arrived, rest = await left(there, "out"), await left(redis)
    assert_same(arrived + rest, messages)
    assert bool(rest) is not forward
    assert await keys(there) == [b"out"]
    assert await keys(redis) == ([b"in"] if rest else [])


async def test_many_unconfirmed_messages_are_put_back_in_order_in_few_transactions(
    redis: Redis, there: Redis, there_url: str
) -> None:
    messages = [b"%d" % number for number in range(20_000)]
    move = Move(redis, b"in", there, "out", there_url)
    await agree(move, move._wire, "out")
    await push(redis, messages)
    await redis.rename("in", move.pending)
    await push(redis, [b"later"])
    await redis.config_resetstat()
    await move.end()
    transactions = (await redis.info("commandstats"))["cmdstat_exec"]["calls"]
    assert transactions < 10
    assert_same(await left(redis), [*messages, b"later"])
    assert (await keys(redis), await keys(there)) == ([b"in"], [])
