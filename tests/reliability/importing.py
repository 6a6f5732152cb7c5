"""Importers as processes under load, a worker that loses nothing, and requests amid faults."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any, Final, Self

import httpx
import redis as sync

from penstock.testing.chaos.injection import Kind
from penstock.testing.chaos.proxy import FaultProxy, ProxyFault
from tests.support.harness import Service, until
from tests.support.importers import is_ready

MET_SECONDS: Final = 12
METHODS: Final = ("POST", "GET", "POST", "accepted", "POST", "gone")
"""Kinds of requests: two of them prefer an answer later, and give up at once."""

OUT, CLIENTS = "web:requests", 8
ALLOWED = {200, 503, 504}


class Worker(threading.Thread):
    """Answers every request with its path; takes with a pending list, so that it loses nothing when the server goes.

    The hash ``worked`` counts what it did, by path.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.redis, self.ended = sync.Redis.from_url(url), threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()
        self.redis.close()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                text: Any = self.redis.lindex("worker", -1) or self.redis.blmove(OUT, "worker", 1, "RIGHT", "LEFT")
                if text is None:
                    continue
                request = json.loads(text)
                answer = {"id": request["id"], "status": 200, "headers": [], "body": request["path"]}
                with self.redis.pipeline() as step:
                    step.lpush(request["replyTo"], json.dumps(answer))
                    step.hincrby("worked", request["path"], 1)
                    step.rpop("worker")
                    step.execute()
            except (sync.ConnectionError, sync.TimeoutError, sync.ResponseError):  # away, loading or full
                self.ended.wait(0.01)


class Load:
    """Clients that ask one request after the other, from ``__aenter__`` to ``__aexit__``."""

    def __init__(self, port: int) -> None:
        self.url, self._right, self.wrong = f"http://127.0.0.1:{port}", 0, list[str]()
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = False

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(CLIENTS)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ended = True
        async with asyncio.timeout(60):
            await asyncio.gather(*self._tasks)

    async def _ask(self, number: int) -> None:
        async with httpx.AsyncClient(timeout=30) as client:
            step = 0
            while not self._ended:
                step += 1
                path = f"/{number}/{step}"
                try:
                    answer = await client.get(self.url + path)
                except httpx.TransportError:  # its importer was killed
                    await asyncio.sleep(0.02)
                    continue
                self._right += answer.status_code == 200
                if answer.status_code not in ALLOWED or (answer.status_code == 200 and answer.text != path):
                    self.wrong.append(f"{path}: {answer.status_code} {answer.text}")
                if answer.status_code != 200:
                    await asyncio.sleep(0.02)

    async def served(self, more: int = 50) -> None:
        """Wait until ``more`` requests were answered with 200. Fail after a minute."""
        wanted = self._right + more
        async with asyncio.timeout(60):
            while self._right < wanted:
                await asyncio.sleep(0.01)


def importer(url: str, port: int, log: Path, **settings: Any) -> Service:
    given = {"redis": url, "redis_namespace": "web", "out": OUT, "listen_port": port, "timeout": 10, **settings}
    return Service("himporter", log, **given)


class Trial:
    """Requests before, during and after a fault, and what became of them."""

    def __init__(self, service: Service, port: int) -> None:
        self._service, self._url = service, f"http://127.0.0.1:{port}"
        self._ready = lambda: service.runs() and is_ready(port)
        self._number = 0
        self.wrong = list[str]()
        self.posted, self.accepted = list[str](), dict[str, str]()
        """Paths of POSTs that were answered; those of requests that were accepted, with their status resources."""

    async def ready(self) -> None:
        await asyncio.to_thread(until, self._ready)

    async def ask_all(self, *, killed: bool = False) -> None:
        """Ask once in each way. With ``killed`` a connection may break."""
        async with httpx.AsyncClient(timeout=30) as client:
            await asyncio.gather(*(self._ask(client, method, killed) for method in METHODS))

    async def _ask(self, client: httpx.AsyncClient, method: str, killed: bool) -> None:
        self._number += 1
        path = f"/{method}/{self._number}"
        headers = {"prefer": "respond-async"} if method == "accepted" else {}
        try:
            async with asyncio.timeout(0.001 if method == "gone" else 20):
                found = await client.request("POST" if method == "POST" else "GET", self._url + path, headers=headers)
        except httpx.TransportError as error:
            if not killed:
                self.wrong.append(f"{path}: {error!r}")
            return
        except TimeoutError:
            if method != "gone":
                self.wrong.append(f"{path}: no answer")
            return
        if found.status_code == 202:
            self.accepted[path] = found.headers["location"]
        elif found.status_code == 200 and found.text == path:
            self.posted += [path] if method == "POST" else []
        elif found.status_code != 503 and not (found.status_code == 504 and method in ("POST", "accepted")):
            self.wrong.append(f"{path}: {found.status_code} {found.text}")

    async def inject(self, proxy: FaultProxy, shape: str, kind: Kind, *, starts: bool) -> bool:
        """Inject a fault at a command, amid requests or a start; return whether the command came."""
        fault = ProxyFault(shape, kind.timing, act=self._kill if kind.kills else None)
        if starts:
            await asyncio.to_thread(self._service.stop)
            proxy.fault = fault
            self._service.start()
        proxy.fault = fault
        asking = asyncio.create_task(self._until_met(fault))
        try:
            async with asyncio.timeout(MET_SECONDS):
                await fault.happened.wait()
        except TimeoutError:
            proxy.fault = None
        await asking
        if kind.kills and fault.happened.is_set():
            self._service.start()
        await self.ready()
        await self.ask_all()
        return fault.happened.is_set()

    async def _until_met(self, fault: ProxyFault) -> None:
        until = asyncio.get_running_loop().time() + MET_SECONDS
        while not fault.happened.is_set() and asyncio.get_running_loop().time() < until:
            await self.ask_all(killed=True)
            await asyncio.sleep(0.05)

    async def _kill(self) -> None:
        await asyncio.to_thread(self._service.kill)
