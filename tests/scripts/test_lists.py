"""``penstock.lists``: messages are taken in order, settled once handled, and found again after any failure."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError
from structlog.testing import capture_logs

from penstock import sync
from penstock.base.errors import Unavailable, Unconfirmed, WrongCall, WrongType
from penstock.core import consumer
from penstock.lists import List, Lists, Message, holding, source
from penstock.testing.server import EmbeddedServer
from tests.reliability.proxy import Proxy
from tests.support.consumers import in_hand, sources
from tests.support.harness import PATIENCE, eventually, until
from tests.support.tracked import now

Fill = Callable[[], Any]
NUMBERS: list[bytes | str] = [b"%d" % number for number in range(1, 2_001)]


@pytest.fixture
async def lists(redis: "Redis", redis_url: str) -> AsyncIterator[Lists]:
    async with Lists(redis_url, patience=PATIENCE, lease=PATIENCE) as opened:
        yield opened


@pytest.fixture
async def orders(lists: Lists) -> List:
    return lists["orders"]


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count all handling as fast, also on a busy machine: each batch is twice as large, and settled as one."""
    for module in (consumer, source):
        monkeypatch.setattr(module, "SETTLE_SECONDS", float("inf"))


async def take(source: List, many: int, **options: Any) -> list[bytes | str]:
    """Handle ``many`` messages and leave the loop."""
    handled = list[bytes | str]()
    async for message in source.messages(**options):
        with message:
            handled.append(message.body)
        if len(handled) == many:
            break
    return handled


async def handle(source: List, handler: Callable[[Message], object]) -> None:
    """Handle messages until ``handler`` raises."""
    async for message in source.messages():
        with message:
            handler(message)


async def waiting(redis: "Redis", name: str = "orders") -> list[bytes | str]:
    """Return what waits in a list, oldest first, once no consumer holds anything."""
    async with asyncio.timeout(PATIENCE):
        while [key async for key in redis.scan_iter(f"{name}:consumer*")]:
            await asyncio.sleep(0.01)
    found: list[bytes | str] = await redis.lrange(name, 0, -1)
    return found[::-1]


@pytest.mark.parametrize("url", ["localhost", "http://localhost", "redis://localhost/one"])
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(WrongCall, match="not the URL of a server"):
        Lists(url)


@pytest.mark.usefixtures("swift")
async def test_messages_that_come_together_to_a_waiting_consumer_are_one_batch(redis: "Redis", orders: List) -> None:
    consumer, sizes = orders.consumer(100, 1 << 20), []
    source: Any = consumer.source
    try:
        for first in range(0, 80, 8):
            burst = [b"%d" % number for number in range(first, first + 8)]
            handled: list[bytes] = []
            while len(handled) < len(burst):
                asked = asyncio.create_task(consumer.batch())
                if not handled:
                    await eventually(lambda: source.waits)
                    await redis.lpush("orders", *burst)
                batch = await asked
                for message in batch:
                    with in_hand(consumer, message):
                        handled.append(message.body)
            sizes.append(len(batch))
            assert handled == burst
    finally:
        await consumer.leave()
    assert sizes[-1] == 8, sizes
    assert await waiting(redis) == []


async def test_a_message_that_fails_comes_next_again_and_those_behind_it_follow(redis: "Redis", orders: List) -> None:
    await orders.push_many(NUMBERS)
    with pytest.raises(ZeroDivisionError):
        await handle(orders, lambda message: 1 // (int(message.body) - 700))
    assert await waiting(redis) == NUMBERS[699:]


async def test_a_loop_goes_on_behind_a_message_that_fails_and_does_not_spin(redis: "Redis", orders: List) -> None:
    await orders.push_many(NUMBERS[:20])
    handled, attempts = list[bytes](), list[float]()
    async for message in orders.messages():
        try:
            with message:
                if message.body == b"7":
                    raise ValueError("poison")
                handled.append(message.body)
        except ValueError:
            attempts += [time.monotonic()] if len(handled) == 19 else []
            if len(attempts) == 6:
                break
    assert sorted(handled, key=int) == [each for each in NUMBERS[:20] if each != b"7"]
    assert attempts[5] - attempts[1] >= 0.02 + 0.04 + 0.08 + 0.16, "it waits longer each time"
    assert await waiting(redis) == [b"7"]


async def test_results_are_pushed_with_the_settlement_and_those_of_a_failure_are_not(
    redis: "Redis", orders: List
) -> None:
    await orders.push_many(NUMBERS)

    def square(message: Message) -> None:
        message.also_push("squares", b"%d" % int(message.body) ** 2, "and")
        message.also_push("other", message.body)
        assert message.body != b"1500"

    with pytest.raises(AssertionError):
        await handle(orders, square)
    assert await waiting(redis) == NUMBERS[1_499:]
    squares = [word for number in range(1, 1_500) for word in (b"%d" % number**2, b"and")]
    assert await waiting(redis, "squares") == squares
    assert await waiting(redis, "other") == NUMBERS[:1_499]


async def test_a_slow_loop_leaves_messages_to_others(redis: "Redis", orders: List) -> None:
    await orders.push_many(NUMBERS)
    async for message in orders.messages():
        with message:
            await asyncio.sleep(0.06)  # timing: longer than a batch is meant to last
            left = await redis.llen("orders")
        if message.body == b"10":
            break
    assert left > 1_980


async def test_a_signal_ends_loops_after_the_message_in_hand(
    redis: "Redis", redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle loop does not wait for the end of its BLMOVE."""
    monkeypatch.setattr(holding, "WAIT_SECONDS", 3_600)
    monkeypatch.setattr("penstock.lists.holding.HURRY_SECONDS", 3_600)
    handled = list[bytes]()
    async with Lists(redis_url, stop_signals=[signal.SIGTERM]) as lists:

        async def handle() -> None:
            async for message in lists["orders"].messages():
                with message:
                    os.kill(os.getpid(), signal.SIGTERM)
                    await eventually(lambda: lists.stopping)
                    handled.append(message.body)

        async def idle() -> None:
            async for message in lists["nothing"].messages():
                raise AssertionError(message)

        both = asyncio.gather(handle(), idle())
        await eventually(lambda: [each.waits for each in sources(lists)] == [True, True])
        await lists["orders"].push_many(["a", "b", "c"])
        await asyncio.wait_for(both, PATIENCE)
    assert handled == [b"a"]
    assert await waiting(redis) == [b"b", b"c"]


async def end_leases(redis: "Redis") -> None:
    """Let the leases of all consumers of ``orders`` end now."""
    for consumers in [key async for key in redis.scan_iter("orders:consumers")]:
        await redis.zadd(consumers, dict.fromkeys(await redis.zrange(consumers, 0, -1), 1))  # type: ignore[type-var]


async def lease_of(redis: Any) -> float:
    """Return when the lease of the only consumer of ``orders`` ends, in seconds from now."""
    found: Any = await redis.zrange("orders:consumers", 0, -1, withscores=True)
    [(_, microseconds)] = found
    return float(microseconds) / 1e6 - await now(redis)


async def test_scripts_that_the_server_forgot_are_sent_again(redis: "Redis", orders: List) -> None:
    await orders.push_many(NUMBERS[:5])
    async for message in orders.messages(prefetch=1):
        with message:
            await redis.script_flush()
        if message.body == b"5":
            break
    assert await waiting(redis) == []


async def test_a_full_server_is_emptied_and_results_wait_for_room(
    redis: "Redis", redis_url: str, orders: List, fill: Fill
) -> None:
    await orders.push_many(NUMBERS)
    await fill()
    assert await take(orders, 1_000) == NUMBERS[:1_000]
    async with Lists(redis_url, patience=0.3) as hasty:
        with pytest.raises(Unavailable, match="maxmemory"):
            await hasty["orders"].push("more")
        with pytest.raises(Unavailable, match="maxmemory"):
            await handle(hasty["orders"], lambda message: message.also_push("results", message.body))
        await redis.config_set("maxmemory", 0)
    assert await waiting(redis) == NUMBERS[1_000:]
    assert not await redis.exists("results")


async def test_a_key_of_another_type_is_named_and_stays(redis: "Redis", orders: List) -> None:
    await redis.set("orders", "text")
    with pytest.raises(WrongType, match="orders holds a string, expected a list"):
        await take(orders, 1)
    assert await redis.get("orders") == b"text"
    with pytest.raises(WrongType, match="wrong kind of value"):
        await orders.push("a")
    await redis.delete("orders")
    await orders.push("a")
    await redis.set("out", "text")
    with pytest.raises(WrongType, match="out holds a string, expected a list"):
        await handle(orders, lambda message: message.also_push("out", "b"))
    assert await redis.llen("orders") == 1 or [key async for key in redis.scan_iter("orders:consumer:*")]


async def test_a_message_without_with_is_an_error_and_goes_back(redis: "Redis", orders: List) -> None:
    await orders.push_many(["a", "b"])
    with pytest.raises(WrongCall, match="with message:"):
        async for _ in orders.messages():
            pass
    assert await waiting(redis) == [b"a", b"b"]
    kept = list[Message]()
    async for message in orders.messages():
        with message:
            kept.append(message)
        if len(kept) == 2:
            break
    with pytest.raises(WrongCall, match="handled once"), kept[0]:
        pass
    with pytest.raises(WrongCall, match="in hand"):
        kept[0].also_push("out", "b")


@pytest.mark.parametrize("wrong", [7, None, {"a": 1}, bytearray(b"a")])
async def test_only_bytes_and_text_are_pushed(orders: List, wrong: Any) -> None:
    with pytest.raises(WrongCall, match="expected bytes or text, found"):
        await orders.push(wrong)


async def test_any_bytes_and_sizes_pass(redis: "Redis", orders: List) -> None:
    sent = [b"", b"\xff\0\r\n", "ü".encode(), *(bytes([size % 251]) * size for size in (1, 8_193, 300_000, 3_000_000))]
    await orders.push_many(sent)
    await orders.push("text")
    assert await take(orders, len(sent) + 1) == [*sent, b"text"]
    await orders.push('{"a": 1}')
    async for message in orders.messages():
        with message:
            assert (message.json(), str(message), bytes(message)) == ({"a": 1}, '{"a": 1}', b'{"a": 1}')
        break


async def test_a_server_that_stays_away_is_not_waited_for_without_end() -> None:
    with EmbeddedServer(aof=True) as server:
        async with Lists(server.url, patience=0.5) as lists:
            await lists["orders"].push_many(NUMBERS[:3])
            loop = lists["orders"].messages(prefetch=1)
            with await anext(loop):
                pass
            server.stop()
            with capture_logs() as logs:
                with pytest.raises(Unavailable, match=r"waited .* s \(patience\)"):
                    await anext(loop)
                with pytest.raises(Unavailable):
                    await lists["orders"].push("4")
                server.start()
                await lists["orders"].push("5")
            waits, resumed = (line for line in logs if line["event"] in ("waiting", "resumed"))
            assert "connecting to 127.0.0.1" in waits["reason"]
            assert resumed["after"] >= 0.5
        async with Lists(server.url, lease=1) as lists:
            await asyncio.sleep(0)
            assert await asyncio.wait_for(take(lists["orders"], 3), PATIENCE) in (
                [b"2", b"3", b"5"],
                [b"1", b"2", b"3"],
            )


async def test_pushes_of_several_tasks_go_together_in_order_and_fail_each_for_itself(
    redis: Any, lists: Lists, orders: List
) -> None:
    await redis.set("other", "x")
    await orders.push("0")
    pushes = [orders.push(str(number)) for number in range(1, 50)]
    wrong = [lists["other"].push("x"), lists["bills"].push("1")]
    found = await asyncio.gather(*pushes[:20], *wrong, *pushes[20:], return_exceptions=True)
    assert [type(each) for each in found if each is not None] == [WrongType]
    assert await waiting(redis) == [str(number).encode() for number in range(50)]
    assert await redis.llen("bills") == 1


async def test_a_push_that_is_cancelled_while_others_are_under_way_is_not_sent(redis: Any, orders: List) -> None:
    await orders.push("a")
    await redis.client_pause(600_000, all=False)
    first, second, third = (asyncio.create_task(orders.push(each)) for each in "bcd")
    await eventually(lambda: len(orders._lists._line) == 2)
    second.cancel()
    await redis.client_unpause()
    await asyncio.gather(first, third)
    assert await waiting(redis) == [b"a", b"b", b"d"]


async def test_a_push_whose_reply_is_lost_says_so(redis: "Redis", lists: Lists, orders: List) -> None:
    await orders.push("a")
    await redis.client_pause(600_000, all=False)
    push = asyncio.create_task(orders.push("b"))

    async def is_held() -> bool:
        return bool((await redis.info("clients"))["blocked_clients"])

    await eventually(is_held)
    await lists._producer._connection.disconnect(nowait=True)
    with pytest.raises(Unconfirmed, match="may have been pushed"):
        await push
    await redis.client_unpause()
    await orders.push("c")
    assert b"c" in await waiting(redis)


async def test_no_results_are_no_results(redis: Any, orders: List) -> None:
    await orders.push("a")
    async for message in orders.messages():
        with message:
            message.also_push("out")
        break
    assert await waiting(redis) == []


async def test_a_server_that_lost_settlements_gives_its_messages_again(redis: Any, orders: List) -> None:
    """As after a restart from an older copy, or a failover to a replica that lagged behind."""
    await orders.push_many(NUMBERS[:6])
    handled = list[bytes]()
    with capture_logs() as log:
        async for message in orders.messages(prefetch=1):
            with message:
                handled.append(message.body)
                if handled.count(b"3") == 1 and message.body == b"3":
                    ((consumer, step),) = (await redis.hgetall("orders:consumers:steps")).items()
                    await redis.hset("orders:consumers:steps", consumer, int(step) - 1)
                    await redis.rpush(b"orders:consumer:" + consumer, "2")
            if message.body == b"6":
                break
    assert handled == [*NUMBERS[:3], *NUMBERS[1:6]]
    assert [line["event"] for line in log] == ["lease lost"]


async def test_a_server_that_lost_what_was_taken_gets_no_results_of_it(redis: Any, orders: List) -> None:
    """As after a power cut: the message is in the source again, and its results were not written yet."""
    await orders.push("m1")
    handled = 0
    async for message in orders.messages():
        with message:
            handled += 1
            message.also_push("results", message.body)
            if handled == 1:
                ((consumer, _),) = (await redis.hgetall("orders:consumers:steps")).items()
                await redis.delete(b"orders:consumer:" + consumer)
                await redis.rpush("orders", "m1")
        if handled == 2:
            break
    async with asyncio.timeout(PATIENCE):
        while await redis.keys("orders:consumer:*"):  # the loop is closed in a task of its own
            await asyncio.sleep(0.01)
    assert await redis.lrange("results", 0, -1) == [b"m1"]
    assert not await redis.exists("orders")


async def test_a_consumer_that_has_left_adopts_nothing(redis: Any, orders: List) -> None:
    """Its command to adopt was delayed on its way until it had left."""
    await redis.zadd("orders:consumers", {"dead": 1})
    await redis.hset("orders:consumers:steps", "dead", 3)
    await redis.lpush("orders:consumer:dead", "a")
    await orders.source(10, 1_000).holding.adopt([b"dead"])
    assert await redis.lrange("orders:consumer:dead", 0, -1) == [b"a"]


async def test_a_wait_whose_command_is_late_is_not_given_up(
    redis: Any, redis_url: str, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop is cancelled while its BLMOVE is on its way: what that moves later is adopted."""
    monkeypatch.setattr(holding, "WAIT_SECONDS", 1)
    late, waits = threading.Event(), threading.Event()

    class Delay(Proxy):
        def met_by(self, request: bytes) -> None:
            if b"BLMOVE" in request and not waits.is_set():
                waits.set()
                late.wait(PATIENCE)

    with Delay(server.port) as slow:
        async with Lists(slow.url, lease=1) as lists:
            task = asyncio.create_task(take(lists["orders"], 1))
            assert await asyncio.to_thread(waits.wait, PATIENCE)
            await redis.lpush("orders", "m1")
            task.cancel()
            await asyncio.wait({task})
            assert await redis.zcard("orders:consumers") == 1
            late.set()
            async with asyncio.timeout(PATIENCE):
                while await redis.exists("orders"):
                    await asyncio.sleep(0.01)
    async with Lists(redis_url, lease=1) as lists:
        assert await asyncio.wait_for(take(lists["orders"], 1), PATIENCE) == [b"m1"]


async def test_hundreds_of_dead_consumers_do_not_delay_messages(redis: Any, orders: List) -> None:
    dead = {f"dead{number}": 1 for number in range(950)}
    await redis.zadd("orders:consumers", dead)
    await redis.hset("orders:consumers:steps", mapping=dict.fromkeys(dead, 3))
    await redis.lpush("orders:consumer:dead7", "held")
    await orders.push("a")
    await redis.config_resetstat()
    assert await take(orders, 2) == [b"held", b"a"]
    assert (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"] < 40


@pytest.mark.parametrize("stops", [False, True])
async def test_the_end_of_lists_ends_loops_of_other_tasks_that_wait(redis: Any, redis_url: str, *, stops: bool) -> None:
    """Each gives back its lease, and takes no message that comes later."""
    async with Lists(redis_url) as lists:
        tasks = [asyncio.create_task(take(lists["orders"], 1)) for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            while sum(each.waits for each in sources(lists)) < len(tasks):
                await asyncio.sleep(0.01)
        if stops:
            lists.stop()
    await redis.lpush("orders", "late")
    assert await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE) == [[], [], []]
    assert await redis.keys() == [b"orders"]
    assert await redis.lrange("orders", 0, -1) == [b"late"]


async def test_the_end_of_lists_ends_loops_of_other_threads_that_wait(here: Any, redis_url: str) -> None:
    taken = list[Message]()
    with sync.Lists(redis_url) as lists:
        threads = [threading.Thread(target=lambda: taken.extend(lists["orders"].messages())) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: here.info("clients")["blocked_clients"] == len(threads))
    here.lpush("orders", "late")
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert (taken, here.keys(), here.lrange("orders", 0, -1)) == ([], [b"orders"], [b"late"])


@pytest.mark.slow
async def test_a_stop_does_not_wait_for_a_server_that_hangs(redis_url: str) -> None:
    with EmbeddedServer() as frozen:
        async with Lists(frozen.url) as lists:
            task = asyncio.create_task(take(lists["orders"], 1))
            await eventually(lambda: any(each.waits for each in sources(lists)))
            os.kill(frozen.pid, signal.SIGSTOP)
            lists.stop()
            try:
                assert await asyncio.wait_for(task, 15) == []
            finally:
                os.kill(frozen.pid, signal.SIGCONT)


async def test_a_loop_that_follows_a_failed_one_begins_with_what_failed(redis: Any, orders: List) -> None:
    """The error is caught outside the loop, whose generator closes in a task of its own."""
    await orders.push_many(NUMBERS[:300])
    handled = list[bytes]()

    def handle_some(message: Message) -> None:
        if int(message.body) % 10 == 0 and handled[-1:] != [message.body + b"!"]:
            handled.append(message.body + b"!")
            raise ValueError(message.body)
        handled.append(message.body)
        if message.body == b"300":
            raise StopIteration

    while handled[-1:] != [b"300"]:
        with suppress(ValueError, RuntimeError):
            await handle(orders, handle_some)
    assert [each for each in handled if not each.endswith(b"!")] == NUMBERS[:300]


async def test_large_results_are_written_soon(redis: Any, orders: List) -> None:
    await orders.push_many(NUMBERS[:20])
    count = 0
    async for message in orders.messages(prefetch=20):
        with message:
            message.also_push("results", b"x" * (1 << 20))
        count += 1
        if count == 10:
            assert await redis.llen("results") >= 8
            break


async def test_results_of_one_message_are_bounded(redis: Any, orders: List) -> None:
    await orders.push("a")
    async for message in orders.messages():
        with message:
            message.also_push("results", b"x" * (20 << 20))
            with pytest.raises(WrongCall, match="16 MiB"):
                message.also_push("results", b"y")
        break
    assert await waiting(redis) == []
    assert [len(each) for each in await redis.lrange("results", 0, -1)] == [20 << 20]


async def test_what_was_taken_with_a_message_that_fails_comes_before_it(redis: Any, orders: List) -> None:
    """As docs/lists.md says; with ``prefetch=1`` it is the next."""
    for prefetch, expected in ((3, ["1", "2", "3", "1"]), (1, ["1", "1"])):
        await redis.flushall()
        await orders.push_many(["1", "2", "3"])
        consumer, order = orders.consumer(prefetch, 1 << 20), []
        consumer._prefetch = FullPace(prefetch)
        async for message in consumer.messages():
            order.append(str(message))
            with suppress(ValueError), message:
                if order == ["1"]:
                    raise ValueError
            if len(order) == len(expected):
                break
        assert order == expected


class FullPace:
    """Takes as many messages as may be, also at first."""

    def __init__(self, most: int) -> None:
        self._most = most

    def size(self) -> int:
        return self._most

    def begin(self) -> None:
        """Measure nothing."""


async def test_lists_that_share_a_signal_are_all_stopped(redis_url: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    first, second = (Lists(redis_url, stop_signals=[signal.SIGTERM]) for _ in range(2))
    await first.__aenter__()
    async with second:
        await first.__aexit__(None, None, None)
        os.kill(os.getpid(), signal.SIGTERM)
        await eventually(lambda: second.stopping)
    assert signal.getsignal(signal.SIGTERM) == before


async def test_signals_are_for_the_main_thread(redis_url: str) -> None:
    async def enter() -> None:
        async with Lists(redis_url, stop_signals=[signal.SIGTERM]):
            pass

    with pytest.raises(WrongCall, match="main thread"):
        await asyncio.to_thread(asyncio.run, enter())


async def test_a_consumer_that_was_given_up_before_it_knew_that_it_had_begun_begins_anew(
    redis: Any, orders: List
) -> None:
    """Its first call took messages, the reply was lost, and it could not repeat the call until its lease had ended."""
    await orders.push("a")
    consumer = orders.consumer(10, 1_000)
    source: Any = consumer.source
    await redis.hset("orders:consumers:steps", source.holding.id, "gone:1")
    with capture_logs() as log:
        (message,) = await consumer.batch()
    with in_hand(consumer, message):
        assert message.body == b"a"
    await consumer.leave()
    assert [line["event"] for line in log] == ["lease lost"]


async def test_a_wait_that_was_cancelled_on_a_dead_link_takes_no_message(
    redis: Any, orders: List, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sees the end of the connection late, and still serves its BLMOVE."""
    loop = orders.messages()
    waits = asyncio.ensure_future(anext(loop))
    while not (await redis.info("clients"))["blocked_clients"]:
        await asyncio.sleep(0.01)
    [source] = sources(orders._lists)
    raw, kept = source.holding.raw, source.holding.raw._connection

    async def leave_open() -> None:
        raw._connection = None
        raw.redis.connection_pool._in_use_connections.discard(kept)

    monkeypatch.setattr(raw, "close", leave_open)
    waits.cancel()
    await asyncio.wait({waits})
    await orders.push("a")
    assert await redis.lrange("orders", 0, -1) == [b"a"]
    await kept.disconnect()


async def test_the_list_of_a_consumer_that_was_given_up_is_looked_at_again(redis: Any, orders: List) -> None:
    await redis.zadd("orders:consumers", {"dead": 1})
    await redis.hset("orders:consumers:steps", "dead", 7)
    await orders.push("b")
    loop = orders.messages()
    with await anext(loop) as message:
        assert message.body == b"b"
    await redis.lpush("orders:consumer:dead", "a")  # a command of it that was on its way
    assert await redis.zscore("orders:consumers", "dead") > await now(redis) * 1e6
    await redis.zadd("orders:consumers", {"dead": 1})
    async with asyncio.timeout(PATIENCE):
        with await anext(loop) as message:
            assert message.body == b"a"
    await loop.aclose()  # type: ignore[attr-defined]


async def test_a_user_without_the_right_to_wait_is_told(redis: Any, redis_url: str) -> None:
    await redis.execute_command("ACL", "SETUSER", "idle", "on", ">x", "~*", "&*", "+@all", "-blmove")
    async with Lists(redis_url.replace("redis://", "redis://idle:x@"), patience=PATIENCE) as lists:
        with pytest.raises(NoPermissionError, match="blmove"):
            await anext(lists["orders"].messages())
    await redis.execute_command("ACL", "DELUSER", "idle")


async def test_leases_are_renewed_again_after_trouble(redis: Any, redis_url: str) -> None:
    async with Lists(redis_url, lease=2) as lists:
        await lists["orders"].push("a")
        async for message in lists["orders"].messages():
            with message:
                await redis.rename("orders:consumers", "aside")
                await redis.set("orders:consumers", "no zset")
                await redis.config_resetstat()

                async def has_failed() -> bool:
                    return "errorstat_WRONGTYPE" in await redis.info("errorstats")

                await eventually(has_failed)
                await redis.rename("aside", "orders:consumers")
                await end_leases(redis)
                lists.server.lease = 3_600

                async def is_renewed() -> bool:
                    return await lease_of(redis) > 1_800

                await eventually(is_renewed)
            break


async def test_pushes_beside_each_other_share_one_patience() -> None:
    many = 2 * int(PATIENCE)
    async with Lists("redis://127.0.0.1:1", patience=1) as lists:
        pushes = [lists["a"].push("x") for _ in range(many)]
        found = await asyncio.wait_for(asyncio.gather(*pushes, return_exceptions=True), PATIENCE)
    assert [type(each) for each in found] == [Unavailable] * many


async def test_a_stop_while_the_server_is_away_ends_soon() -> None:
    with EmbeddedServer() as server:
        async with Lists(server.url, patience=None) as lists:
            loop = lists["orders"].messages()
            waits = asyncio.ensure_future(anext(loop, None))
            await eventually(lambda: [each.waits for each in sources(lists)] == [True])
            server.stop()
            await eventually(lambda: [each.waits for each in sources(lists)] == [False])
            lists.stop()
            await asyncio.wait({waits}, timeout=PATIENCE)
            assert waits.done()
            waits.exception()


async def test_outside_async_with_nothing_is_begun(redis_url: str) -> None:
    lists = Lists(redis_url)
    with pytest.raises(WrongCall, match="expected `async with"):
        await anext(lists["orders"].messages())
    with pytest.raises(WrongCall, match="expected `async with"):
        await lists["orders"].push("a")


async def test_a_message_that_is_too_large_for_the_server_is_named(redis: Any, orders: List) -> None:
    await redis.config_set("proto-max-bulk-len", 1 << 20)
    try:
        with pytest.raises(WrongCall, match="a message of 2,097,152 bytes, where the server takes 1,048,576"):
            await orders.push(b"x" * (1 << 21))
        await orders.push("b")
    finally:
        await redis.config_set("proto-max-bulk-len", 512 << 20)
    assert await waiting(redis) == [b"b"]
