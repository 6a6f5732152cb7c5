"""What a peer of `penstock.bus` does in each role, with the protocol of ``busmq_peer.js``."""

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from penstock.base.errors import Full, RequestFailed, RequestTimeout
from penstock.bus import Bus, Channel, Message, Persistable, PubSub, Queue, Request, Service
from penstock.bus.events import Emitter
from penstock.bus.mode import from_busmq

Out = Callable[..., None]
Take = Callable[[str], Awaitable[object]]
QUEUE: Final = ("attached", "consuming", "message", "closed", "error")
CHANNEL: Final = ("connect", "remote:connect", "message", "remote:disconnect", "disconnect", "end", "error")
ATTACH: Final = ("ttl", "maxsize", "discoverable")
CONSUME: Final = ("max", "remove", "reliable", "exclusive", "last", "index")


class Refusal(Exception):
    """An error of a provider, with a field of its own."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 7


async def queue(bus: Bus, out: Out, name: str, options: dict[str, Any]) -> Take:
    """Call the methods that the lines name."""
    queue = _relay(out, bus.queue(name), *QUEUE)

    async def take(line: str) -> None:
        method, *values = json.loads(line)
        named = {}
        if method in ("attach", "consume") and values:
            named = from_busmq(values.pop())
        if method == "push":
            named = {"json": not isinstance(values[0], str)}
        try:
            call = partial(_metadata, queue) if method == "metadata" else getattr(queue, method)
            value = await call(*values, **named)
        except Full:
            value = None
        if method in ("push", "count", "exists", "ttl", "maxsize", "metadata", "flush", "find"):
            out("returned", method, None, value)

    if "consume" in options:
        run(_consume(queue, from_busmq(options["consume"])))
    if options.get("attach") is not False:
        run(queue.attach(**_only(options, ATTACH)))
    return take


async def _metadata(queue: Queue, *values: Any) -> Any:
    """Do what busmq's ``metadata`` does by the type of its arguments."""
    if len(values) == 1 and isinstance(values[0], str):
        return await queue.get_metadata(values[0])
    return await queue.set_metadata(values[0] if len(values) == 1 else {values[0]: values[1]})


async def push(bus: Bus, out: Out, name: str, options: dict[str, Any]) -> Take:
    """Push each line."""
    queue = _relay(out, bus.queue(name), "attached", "error")
    run(queue.attach(**_only(options, ATTACH)))

    async def take(line: str) -> None:
        try:
            out("pushed", await queue.push(line))
        except Full:
            out("pushed", None)

    return take


async def consume(bus: Bus, out: Out, name: str, options: dict[str, Any]) -> Take:
    """Consume; a line is ``stop``, ``close``, or an id to acknowledge."""
    queue = _relay(out, bus.queue(name), *QUEUE)
    run(_consume(queue, from_busmq(_only(options, CONSUME))))
    run(queue.attach(**_only(options, ATTACH)))

    async def take(line: str) -> None:
        await (queue.ack(int(line)) if line.isdigit() else getattr(queue, line)())

    return take


async def connect(bus: Bus, out: Out, name: str, options: dict[str, Any]) -> Take:
    """Connect to a channel; a line is a message unless it is a command."""
    roles = {each: options[each] for each in ("local", "remote") if each in options}
    channel: Channel = _relay(out, bus.channel(name, **roles), *CHANNEL)

    async def opened() -> None:
        await (channel.listen if options.get("listen") else channel.connect)(
            **from_busmq(_only(options, ATTACH + CONSUME))
        )

    async def take(line: str) -> None:
        command, *words = line.split(" ")
        if command in ("/disconnect", "/end"):
            await getattr(channel, command[1:])()
        elif command == "/connect":
            await opened()
        elif command == "/ack":
            await channel.ack(int(words[0]))
        elif command == "/to":
            await channel.send_to(*words)
        else:
            await channel.send(line)

    run(opened())
    return take


async def persist(bus: Bus, out: Out, name: str, options: dict[str, Any]) -> Take:
    """Set fields and save, load, or keep alive."""
    value = SimpleNamespace()
    stored: Persistable = bus.persistable(name, value, options["attrs"])

    async def take(line: str) -> None:
        call = json.loads(line)
        if "persist" in call:
            await stored.persist(call["persist"])
        elif "load" in call:
            out("loaded", await stored.load(), [getattr(value, each, None) for each in options["attrs"]])
        else:
            vars(value).update(call)
            await stored.save()
            out("saved", None)

    return take


async def pubsub(bus: Bus, out: Out, name: str, options: dict[str, Any]) -> Take:
    """Subscribe; publish each line."""
    topic: PubSub = _relay(out, bus.pubsub(name), "subscribed", "unsubscribed", "message")
    run(topic.subscribe())

    async def take(line: str) -> None:
        if line == "/unsubscribe":
            await topic.unsubscribe()
        elif line.startswith("{"):
            await topic.publish(json.loads(line), json=True)
        else:
            await topic.publish(line)

    return take


async def serve(bus: Bus, out: Out, name: str, options: dict[str, Any]) -> Take:
    """Answer requests as they say themselves."""
    service: Service = _relay(out, bus.service(name), "serving", "disconnect")

    async def answer(request: Request) -> None:
        data = request.data
        out("request", data)
        if data is None or "silent" in data:
            return
        if "fail" in data:
            await request.fail(Refusal(data["fail"]))
        elif "error" in data:
            await request.fail(data["error"])
        elif "parts" in data:
            *parts, last = data["parts"]
            for part in parts:
                await request.partial(part)
            await request.answer(last)
        elif "stream" in data:
            for part in data["stream"]:
                await request.partial(part)
            await request.end()
        else:
            await request.answer({"echo": data})

    service.on("request", answer)
    run(service.serve(**_only(options, ("ttl", "max"))))

    async def take(_: str) -> None:
        await service.disconnect(options.get("grace", 0) / 1000)

    return take


async def request(bus: Bus, out: Out, name: str, options: dict[str, Any]) -> Take:
    """Send each line as a request."""
    service: Service = _relay(out, bus.service(name), "connected", "disconnect")
    timeout = options.get("reqTimeout", 1000) / 1000
    run(service.connect())

    async def take(line: str) -> None:
        if line == "/disconnect":
            await service.disconnect()
            return
        data = json.loads(line)
        try:
            if options.get("notify"):
                await service.notify(data, timeout=timeout)
            elif options.get("streamReply"):
                async for part in service.stream(data, timeout=timeout):
                    out("part", part)
                out("parts end")
            elif options.get("allowPartial"):
                async for part in service.stream(data, timeout=timeout):
                    out("reply", None, part)
            else:
                out("reply", None, await service.request(data, timeout=timeout))
        except RequestTimeout:
            out("reply", "timeout", None)
        except RequestFailed as error:
            out("reply", error.error, None)

    return take


ROLES: Final = {each.__name__: each for each in (queue, push, consume, connect, persist, pubsub, serve, request)}


def _relay(out: Out, source: Any, *events: str) -> Any:
    def relay(event: str) -> None:
        def told(*values: Any) -> None:
            out(event, *(word for each in values for word in _words(each)))

        source.on(event, told)

    emitter: Emitter = source
    for event in events:
        relay(event)
    return emitter


def _words(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Message):
        return str(value), value.id
    if isinstance(value, bytes):
        return (value.decode(errors="replace"),)
    return (str(value) if isinstance(value, Exception) else value,)


def _only(options: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}


async def _consume(queue: Queue, options: dict[str, Any]) -> None:
    await queue.consume(**options)


_running = set[asyncio.Task[None]]()


def run(work: Awaitable[object]) -> None:
    """Run ``work`` beside; an exception ends the program, as it does in Node."""

    async def until_ended() -> None:
        try:
            await work
        except Exception:  # noqa: BLE001  # whatever it is, the test shall see it
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    task = asyncio.create_task(until_ended())
    _running.add(task)
    task.add_done_callback(_running.discard)
