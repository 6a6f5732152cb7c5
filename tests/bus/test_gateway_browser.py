"""The browser's client in headless Chromium, against our gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.base.errors import PenstockError, Unavailable
from penstock.bus import Bus, Queue
from penstock.bus.consumption import Consumption
from services.gateway.listener import Listener
from tests.bus.browser import Page, browser
from tests.bus.faces import CALLS, OPEN, WAITS, WRONG, Kind, made
from tests.bus.gateway import SECRET
from tests.support.harness import eventually

pytestmark = pytest.mark.slow

BUS = f"const {{ connect }} = await import('/bus.js'); const bus = window.bus ??= connect({{ secret: '{SECRET}' }});"


@pytest.fixture
async def page(gateway: Listener, tmp_path: Path) -> AsyncIterator[Page]:
    async with browser(tmp_path / "profile") as found:
        await found.open(f"http://127.0.0.1:{gateway.port}/")
        yield found


async def test_a_page_pushes_consumes_and_goes_on_after_a_cut(page: Page, gateway: Listener, bus: Bus) -> None:
    assert await page.run(
        BUS
        + """
        const queue = await bus.queue('orders').attach({ ttl: 20 });
        const ids = [await queue.push('ü'), await queue.push({ pears: 3 })];
        const taken = [];
        for await (const message of queue.consume({ max: 2 })) taken.push([message.id, message.text]);
        return [ids, taken, await queue.count(), await queue.ttl()];
        """
    ) == [[1, 2], [[1, "ü"], [2, '{"pears":3}']], 0, 20]
    local = bus.queue("orders")
    assert await local.attach() is True
    await local.push_many(str(number) for number in range(500))
    await page.run(
        BUS
        + """
        window.queue = bus.queue('orders');
        await queue.attach();
        window.taken = [];
        window.consuming = (async () => {
          for await (const message of queue.consume({ reliable: true })) {
            taken.push(message.text);
            message.ack().catch(() => null);
          }
        })();
        """
    )
    await eventually(lambda: _taken(page, 500))
    gateway.drop_all()
    await local.push_many(["after", "the cut"])
    await eventually(lambda: _taken(page, 502))
    taken = await page.run("await queue.stop(); await consuming; return taken")
    assert taken == [*map(str, range(500)), "after", "the cut"]
    gateway.counters.clear()
    await page.run("bus.close()")
    await eventually(lambda: gateway.counters["disconnections"] == 1)


async def test_what_a_page_wants_is_tried_again_until_it_is_so(
    page: Page, gateway: Listener, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was tried once after a cut: a queue whose server was away then was never attached again."""
    await page.run(
        BUS
        + """
        window.queue = bus.queue('orders');
        window.channel = bus.channel('talk');
        window.taken = [];
        window.events = [];
        queue.addEventListener('error', event => events.push(event.detail.message));
        channel.addEventListener('message', event => taken.push(event.detail.text));
        window.consuming = (async () => {
          for await (const message of queue.consume({ max: 3 })) taken.push(message.text);
          taken.push('the end');
        })();
        await queue.attach();
        await channel.connect();
        """
    )
    local, other = bus.queue("orders"), bus.channel("talk")
    await local.attach()
    await other.listen()
    await local.push("one")
    await eventually(lambda: _taken(page, 1))
    attach, consume, lets = Queue.attach, Queue.consume, asyncio.Event()

    async def attached(queue: Queue, **options: Any) -> bool:
        if not lets.is_set():
            raise Unavailable("its server is away")
        return await attach(queue, **options)

    def consumed(queue: Queue, **options: Any) -> Consumption:
        if lets.is_set() and queue.name == "orders" and not refused:
            refused.append(True)
            raise Unavailable("its server is away again")
        return consume(queue, **options)

    refused = list[bool]()
    monkeypatch.setattr(Queue, "attach", attached)
    monkeypatch.setattr(Queue, "consume", consumed)
    gateway.drop_all()

    async def is_told() -> bool:
        return bool(await page.run("return events.length"))

    await eventually(is_told)
    assert await page.run("return [queue.isAttached, channel.isConnected]") == [False, False]
    lets.set()
    await local.push_many(["two", "three", "four"])
    await other.send("hello")
    await eventually(lambda: _taken(page, 5))
    assert sorted(await page.run("await consuming; return taken")) == ["hello", "one", "the end", "three", "two"]
    assert await page.run("return [queue.isAttached, channel.isConnected, events.length]") == [True, True, 1]
    assert (refused, await local.count()) == ([True], 1)


async def _taken(page: Page, many: int) -> bool:
    found: int = await page.run("return new Set(taken).size")
    return found == many


async def test_what_a_page_has_closed_stays_closed_after_a_cut(page: Page, gateway: Listener, redis: Any) -> None:
    refused = await page.run(
        BUS
        + """
        window.queue = bus.queue('zoo');
        const failed = await queue.close().then(() => '', error => error.message);
        await bus.queue('other').attach();
        return failed;
        """
    )
    assert "attach" in refused
    gateway.drop_all()
    assert await page.run("return await queue.exists()") is False
    await page.run("await queue.attach(); await queue.push('one'); await queue.close();")
    gateway.drop_all()
    assert await page.run("return await queue.exists()") is False
    assert not await redis.exists("bus:queue:zoo:metadata")


async def test_a_page_holds_a_channel(page: Page, bus: Bus) -> None:
    other, heard = bus.channel("talk"), list[bytes]()
    other.on("message", lambda message: heard.append(message.body))
    await other.listen()
    await page.run(
        BUS
        + """
        window.channel = bus.channel('talk');
        window.heard = [];
        channel.addEventListener('message', event => heard.push(event.detail.text));
        channel.addEventListener('end', () => heard.push('ended'));
        await channel.connect();
        await channel.send({ from: 'the page' });
        """
    )
    await eventually(lambda: heard == [b'{"from":"the page"}'])
    await other.send("to the page")
    await other.end()

    async def ended() -> bool:
        found: list[str] = await page.run("return heard")
        return found == ["to the page", "ended"]

    await eventually(ended)


async def test_a_wrong_secret_is_told(page: Page, gateway: Listener) -> None:
    assert (
        await page.run(
            """
        const { connect } = await import('/bus.js');
        const bus = connect({ secret: 'wrong' });
        try { await bus.queue('x').attach(); } catch (error) { return error.constructor.name; }
        """
        )
        == "UnauthorizedError"
    )
    assert gateway.counters["unauthorized"] == 1


async def test_the_page_to_try_it(page: Page) -> None:
    async def text_of(id_: str) -> str:
        return str(await page.run(f"return document.getElementById('{id_}').textContent"))

    async def shows(id_: str, text: str) -> None:
        async def found() -> bool:
            return text in await text_of(id_)

        await eventually(found)

    await page.run(f"secret.value = {json.dumps(SECRET)}; login.requestSubmit()")
    await shows("state", "connected")
    await page.run("document.getElementById('push').requestSubmit()")
    await shows("messages", "1 pushed")
    await page.run("document.getElementById('consume').click()")
    await shows("messages", "1 taken")
    await page.run("document.getElementById('send').requestSubmit()")
    await shows("words", "sent")
    assert await page.picture() != await page.picture(dark=True)


SAME: Final[dict[Kind, dict[str, str]]] = {
    "queue": {
        "attach for no time": "queue.attach({ ttl: 0 })",
        "attach with half a message": "queue.attach({ maxsize: 0.5 })",
        "attach with less than none": "queue.attach({ maxsize: -1 })",
        "count": "queue.count()",
        "ttl": "queue.ttl()",
        "maxsize": "queue.maxsize()",
        "find": "queue.find()",
        "exists": "queue.exists()",
        "flush": "queue.flush()",
        "close": "queue.close()",
        "get_metadata": "queue.metadata('maxsize')",
        "ack": "queue.ack(1)",
        "ack of text": "queue.ack('x')",
        "push": "queue.push('a')",
        "push as JSON": "queue.push({ a: 1 })",
        "detach": "queue.detach()",
    },
    "channel": {
        "connect for no time": "channel.connect({ ttl: 0 })",
        "send": "channel.send('a')",
        "send_to": "channel.sendTo('remote', 'a')",
        "send_to no role": "channel.sendTo('', 'a')",
        "send_to another channel": "channel.sendTo('a:b', 'a')",
        "ack of text": "channel.ack('x')",
        "disconnect": "channel.disconnect()",
        "end": "channel.end()",
    },
}
"""Calls of bus.js by what ``CALLS`` says of them.

Others differ by design: attach, connect and listen return the object, push takes any value as JSON, and options that a
gateway does not know, such as prefetch, are ignored.
"""
OPENED: Final = {"queue": "await queue.attach()", "channel": "await channel.connect()"}


@pytest.mark.parametrize("kind", SAME)
async def test_calls_of_a_page_have_the_same_outcome_as_those_of_python(
    kind: Kind, page: Page, bus: Bus, redis: Any
) -> None:
    found, expected = dict[str, Any](), dict[str, Any]()
    for name, call in SAME[kind].items():
        called = CALLS[kind].get(name) or WRONG[kind][name][0]
        for is_open in (False, True) if name not in WAITS else (True,):
            await redis.flushall()
            which = f"{name}, open: {is_open}"
            found[which] = await page.run(
                BUS
                + f"""
                const {kind} = bus.{kind}('page {len(found)}');
                try {{
                  {OPENED[kind] if is_open else ""};
                  return ['returns', await {call} ?? null];
                }} catch (error) {{
                  return ['fails', null];
                }} finally {{
                  {kind}.leave();
                }}
                """
            )
            await redis.flushall()
            face = made(kind, bus)
            if is_open:
                await OPEN[kind](face)
            try:
                expected[which] = ["returns", await called(face)]
            except PenstockError:
                expected[which] = ["fails", None]
            await face.leave()
    assert found == expected
