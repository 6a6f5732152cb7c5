"""What the tests of penstock shovel share: calls, messages, and a proxy that holds back replies."""

import asyncio
import random
import socket
import threading
from asyncio.subprocess import Process
from contextlib import AbstractAsyncContextManager
from typing import Any

from redis.asyncio import Redis

from tests.cli.given import left
from tests.reliability.proxy import Proxy, ProxyConnection, received, send
from tests.reliability.two_servers import assert_same
from tests.support.commandline import Result, ended, penstock, running
from tests.support.harness import PATIENCE

HALFWAY = b"halfway"
"""Part of all messages of some middle batches; tests inject a fault at the first request with it."""

SMALLEST_LIMIT = 1 << 20
"""Smallest possible limit (bytes) of a server's message size."""


class ReplyGate(Proxy):
    """Proxy that holds back replies from the first request with ``word`` until ``open`` is called."""

    def __init__(self, port: int, word: bytes = HALFWAY) -> None:
        super().__init__(port)
        self._word = word
        self.closed, self._open = threading.Event(), threading.Event()
        self._open.set()

    def met_by(self, request: bytes) -> None:
        if self._word in request and not self.closed.is_set():
            self._open.clear()
            self.closed.set()

    def open(self) -> None:
        self._open.set()

    def connection(self, client: socket.socket, server: socket.socket) -> ProxyConnection:
        return HeldBackConnection(self, client, server)

    def wait(self) -> None:
        self._open.wait(PATIENCE)


class HeldBackConnection(ProxyConnection):
    _proxy: ReplyGate

    def _forward_replies(self) -> None:
        while reply := received(self._server):
            self._proxy.wait()
            send(self._client, reply)
        self._proxy.wait()
        self.cut()


def messages_with_trouble(count: int = 20_000, size: int = 0) -> list[bytes]:
    """Return different messages of arbitrary bytes, 2,000 of them with ``HALFWAY`` from the middle on."""
    noise = random.Random(4).randbytes(512)
    return [
        b"%d " % number
        + noise[: number % 40]
        + (HALFWAY * 4 if count // 2 <= number < count // 2 + 2_000 else b"\0\xff\r\n")
        + b"x" * size
        for number in range(count)
    ]


async def shovel(*words: str | bytes) -> Result:
    return await penstock("shovel", *words)


def shoveling(*words: str) -> AbstractAsyncContextManager[Process]:
    return running("shovel", *words, redis=None)


async def finished(process: Process) -> tuple[int | None, bytes, str]:
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    return process.returncode, out, err.decode()


async def wait_for(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE)


async def kill_once(event: threading.Event, *words: str) -> str:
    """Run shovel, kill it after ``event``; return its stderr."""
    async with shoveling(*words) as process:
        await wait_for(event)
        process.kill()
        return (await ended(process))[1]


async def keys(redis: Redis) -> list[bytes]:
    found: Any = await redis.keys("*")
    return sorted(found)


async def assert_moved(redis: Redis, there: Redis, messages: list[bytes]) -> None:
    """Check that ``messages`` are in ``out``, once and in order, and that no other key is left on either server."""
    assert_same(await left(there, "out"), messages)
    assert (await keys(redis), await keys(there)) == ([], [b"out"] if messages else [])


async def is_long(redis: Redis, length: int) -> bool:
    return await redis.llen("out") == length
