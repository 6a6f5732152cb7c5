"""Worker that answers requests with pages: ``python -m compose.web.worker 1``.

It takes requests from its own list and keeps a key alive, by which mbalance knows that it lives. If it is killed,
mdispatch gives what it had in hand to another worker. A POST is done at most once, even
if any of them is killed at any moment.
"""

import asyncio
import os
import signal
from argparse import ArgumentParser
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from redis.exceptions import RedisError

from common.app import fastest_loop
from common.http.message import IDEMPOTENT
from compose.web.names import DISPATCH, NOTES, WORKERS, begun, registration_of, work_of
from compose.web.pages import Pages, reply
from penstock.base.exact_json import parse
from penstock.errors import Unsuitable
from penstock.lists import Lists, Request

DATA: Final = Path(__file__).parent.parent / "weather/seattle-weather.csv"
ALIVE_SECONDS: Final = 2
"""Seconds after which a dead worker gets no more requests, and its successor adopts what it had in hand."""
RENEW_SECONDS: Final = 0.5
BEGUN_SECONDS: Final = 3_600
"""Seconds for which a worker knows which POST another one has begun."""
PREFETCH: Final = 20
"""Maximum number of requests in hand: a slow one delays those behind it."""


class Worker:
    """The worker of one list."""

    def __init__(self, lists: Lists, name: str) -> None:
        self._lists, self._name = lists, name
        self._pages = Pages(DATA.read_bytes().splitlines()[1:])

    async def run(self) -> None:
        """Answer requests until the lists are stopped."""
        alive = asyncio.create_task(self._stay_alive())
        try:
            while not self._lists.stopping:
                try:
                    await self._answer_all()
                except Unsuitable as error:  # mdispatch has not started yet
                    print(f"waiting: {error}", flush=True)
                    await asyncio.sleep(RENEW_SECONDS)
        finally:
            alive.cancel()
            await asyncio.gather(alive, return_exceptions=True)
            with suppress(RedisError):
                await self._lists.redis.delete(registration_of(self._name))

    async def _stay_alive(self) -> None:
        while True:
            with suppress(RedisError):
                await self._lists.redis.set(registration_of(self._name), os.getpid(), ex=ALIVE_SECONDS)
            await asyncio.sleep(RENEW_SECONDS)

    async def _answer_all(self) -> None:
        work = self._lists.work(DISPATCH.namespace, work_of(self._name))
        async for request in work.requests(prefetch=PREFETCH):
            with request:
                await self._answer(request, parse(request.body))

    async def _answer(self, request: Request, asked: dict[str, Any]) -> None:
        if asked["method"] not in IDEMPOTENT and not await self._begin(asked["id"]):
            request.fail("a worker has begun it, and died", retry=False)
            return
        if (asked["method"], asked["path"]) == ("POST", "/notes"):
            request.also_push(NOTES, asked.get("body", ""))
            answer = reply(201, "text/plain", "noted\n")
        elif asked["method"] in ("GET", "HEAD"):
            answer = await self._pages.answer(asked["path"])
        else:
            answer = reply(405, "text/plain", "expected GET, or POST to /notes\n")
        answer["headers"].append(["x-worker", self._name])
        request.answer(answer)

    async def _begin(self, id: str) -> bool:
        """Return whether nobody has begun the request ``id`` before."""
        return bool(await self._lists.redis.set(begun(id), self._name, nx=True, ex=BEGUN_SECONDS))


async def main(name: str) -> None:
    url = os.environ.get("REDIS", "redis://localhost:6379/0")
    stop = [signal.SIGTERM, signal.SIGINT]
    async with Lists(url, patience=None, lease=ALIVE_SECONDS, stop_signals=stop) as lists:
        await Worker(lists, name).run()


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m compose.web.worker", description=__doc__)
    parser.add_argument("worker", choices=WORKERS)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(main(parser.parse_args().worker))
