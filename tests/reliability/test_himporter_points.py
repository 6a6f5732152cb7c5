"""An importer cut off and killed at every command that it sends: what was accepted is answered, and done once."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import httpx
from redis.asyncio import Redis

from penstock.connection import cancellable
from penstock.ports import free_port
from penstock.testing.chaos.injection import Kind
from penstock.testing.chaos.proxy import FaultProxy, ProxyFault
from penstock.testing.server import EmbeddedServer
from tests.reliability.test_himporter import Worker
from tests.support.commandline import penstock
from tests.support.harness import Service, sampled, until
from tests.support.importers import importer, is_ready

TIMEOUT: Final = 2
"""Seconds until the importer answers 504: requests that are not pushed again wait for it."""
FAULTS: Final = 16
"""Faults of a usual run, of some 100."""
MET_SECONDS: Final = 12
METHODS: Final = ("POST", "GET", "POST", "accepted", "POST", "gone")
"""Kinds of requests: two of them prefer an answer later, and give up at once."""


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


async def test_an_importer_that_breaks_at_any_command_leaves_no_accepted_request_without_an_answer(
    tmp_path: Path,
) -> None:
    with EmbeddedServer() as server, Worker(server.url):
        async with cancellable(Redis.from_url(server.url)) as redis, FaultProxy(server.port) as proxy:
            port, url = free_port(), f"redis://{proxy.address}/0"
            service = importer(
                url, port, tmp_path / "log", timeout=TIMEOUT, prefer=True, service_renew=5, service_expire=30
            )
            with service:
                trial = Trial(service, port)
                await trial.ready()
                starting = set(proxy.seen)
                proxy.seen.clear()
                for _ in range(12):
                    await trial.ask_all()
                    await asyncio.sleep(0.5)
                points = [(shape, True) for shape in starting - set(proxy.seen)] + [
                    (each, False) for each in {*proxy.seen}
                ]
                assert len(points) > 15
                met = Counter[bool]()
                for (shape, starts), kind in drawn([(point, kind) for point in points for kind in Kind]):
                    found = await trial.inject(proxy, shape, kind, starts=starts)
                    assert trial.wrong == [], (shape, kind)
                    met[found] += 1
                least = 0 if sampled(FAULTS) else met.total() / 3  # what is not met comes rarely: once a renewal
                assert met[True] > least, met
                await judge(redis, trial, port)
                assert await asyncio.to_thread(service.stop) == 0
        audit = await penstock("audit", "web", redis=server.url)
        assert audit.status == 0, audit.text


def drawn(faults: list[Any]) -> Iterable[Any]:
    """Return all faults in a long run, else some."""
    many = sampled(FAULTS)
    return faults if many is None else random.sample(faults, min(many, len(faults)))


async def judge(redis: "Redis", trial: Trial, port: int) -> None:
    """Every accepted request has its answer; every POST that was answered was done once, and none twice."""
    worked: Any = await redis.hgetall("worked")
    many = {path.decode(): int(times) for path, times in worked.items()}
    assert {path: many.get(path) for path in trial.posted} == dict.fromkeys(trial.posted, 1)
    assert {path: times for path, times in many.items() if path.startswith("/POST") and times > 1} == {}
    assert trial.posted
    assert trial.accepted
    async with httpx.AsyncClient() as client:
        for path, status in trial.accepted.items():
            found = await client.get(f"http://127.0.0.1:{port}{status}/answer")
            assert (found.status_code, found.text) == (200, path)
