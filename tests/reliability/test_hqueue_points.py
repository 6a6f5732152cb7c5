"""hqueue cut off and killed at every command that it sends: every task that was added ends once."""

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx
from redis.asyncio import Redis

from penstock.base.ports import free_port
from penstock.core.connection import cancellable
from penstock.testing.chaos.injection import Kind
from penstock.testing.chaos.proxy import FaultProxy
from penstock.testing.server import EmbeddedServer
from tests.reliability.importing import Trial
from tests.reliability.queue_events import ENDS, KEYS, events_of
from tests.support.commandline import penstock
from tests.support.harness import PATIENCE, Service, sampled

QUEUE: Final = KEYS.queue("/points", "tasks")
FAULTS: Final = 6
"""Faults of a usual run, of some 100."""
ROUNDS_SEEN: Final = 6
OFTEN: Final = 3
"""A command that came more often than this in so many rounds is awaited in a usual run, too."""
ALLOWED: Final = {
    "tasks": {200, 201}, "fetch": {200, 204}, "ack": {200, 409}, "heartbeat": {200, 409}, "info": {200},
    "cancel": {204, 202, 404, 409}, "show": {200},
}  # fmt: skip
"""Answers besides 503, by what was asked."""
REFUSED: Final = 503


class Points(Trial):
    """Tasks that are added, done, given up and cancelled before, during and after each fault."""

    def __init__(self, service: Service, port: int) -> None:
        super().__init__(service, port)
        self._queue = f"http://127.0.0.1:{port}/queues/points"
        self.client = httpx.AsyncClient(timeout=20)
        self._bodies = dict[str, dict[str, Any]]()
        self.ids, self.ended = dict[str, str](), Counter[str]()
        """Ids of tasks whose addition was answered, by name; how often the end of one was."""

    async def ask_all(self, *, killed: bool = False) -> None:
        key = f"key {self._number}"  # of its own: of those of one key, one is done at a time
        given: list[dict[str, Any]] = [{}, {"key": key}, {"key": key}, {"delay": 0.05}, {"ttl": 0.3}]
        for name in {*self._bodies} - {*self.ids}:  # those whose addition had no answer
            await self._add(killed, name)
        names = [self._named(**more) for more in given]
        for name in names:
            await self._add(killed, name)
        if id := self.ids.get(names[0]):
            await self._ask(killed, "cancel", "DELETE", f"tasks/{id}")
            await self._ask(killed, "show", "GET", f"tasks/{id}")
        await self._ask(killed, "info", "GET", "info")
        for _ in range(2):
            await self.work(killed=killed)

    async def work(self, *, killed: bool = False) -> None:
        """Let two workers do what they get."""
        await asyncio.gather(*(self._work(killed, worker) for worker in ("v", "w")))

    def _named(self, **more: Any) -> str:
        self._number += 1
        name = f"task {self._number}"
        body = {"value": self._number, "id": name, "attempts": 0, "backoff": {"initial": 0.01}, **more}
        self._bodies[name] = body
        return name

    async def _add(self, killed: bool, name: str) -> None:
        if found := await self._ask(killed, "tasks", "POST", "tasks", self._bodies[name]):
            self.ids[name] = found["taskId"]

    async def _work(self, killed: bool, worker: str) -> None:
        body = {"workerId": worker, "timeToRecover": 0.5, "wait": 0.05, "max": 5}
        found = await self._ask(killed, "fetch", "POST", "fetch", body)
        for task in (found or {"tasks": []})["tasks"]:
            token = {"taskToken": task["taskToken"]}
            await self._ask(killed, "heartbeat", "POST", "heartbeat", token | {"progress": 1})
            outcome = {"error": "again"} if task["attempt"] == 1 else {"result": task["value"]}
            found = await self._ask(killed, "ack", "POST", "ack", token | outcome)
            self.ended[task["taskId"]] += found is not None and found["state"] in ENDS

    async def _ask(  # type: ignore[override]
        self, killed: bool, what: str, method: str, path: str, body: Any = None
    ) -> Any:
        """Return the answer; None if there is none, or nothing that counts."""
        try:
            found = await self.client.request(method, f"{self._queue}/{path}", json=body)
        except httpx.TransportError as error:
            if not killed:
                self.wrong.append(f"{what}: {error!r}")
            return None
        if found.status_code not in ALLOWED[what] | {REFUSED}:
            self.wrong.append(f"{what}: {found.status_code} {found.text}")
        return found.json() if found.status_code in (200, 201) else None


async def test_hqueue_that_breaks_at_any_command_loses_no_task_and_ends_none_twice(tmp_path: Path) -> None:
    with EmbeddedServer() as server:
        async with cancellable(Redis.from_url(server.url)) as redis, FaultProxy(server.port) as proxy:
            port = free_port()
            given = {"redis": f"redis://{proxy.address}/0", "redis_namespace": KEYS.namespace, "listen_port": port}
            with Service("hqueue", tmp_path / "log", service_renew=5, service_expire=30, **given) as service:
                trial = Points(service, port)
                await trial.ready()
                starting = {*proxy.seen}
                proxy.seen.clear()
                for _ in range(ROUNDS_SEEN):
                    await trial.ask_all()
                    await asyncio.sleep(0.2)
                many, met, seen = sampled(FAULTS), Counter[bool](), Counter(proxy.seen)
                points = [(shape, True) for shape in starting - {*seen}]
                points += [(shape, False) for shape, times in seen.items() if times > OFTEN or many is None]
                assert len(points) > 20, points
                faults = [(point, kind) for point in points for kind in Kind]
                for (shape, starts), kind in faults if many is None else random.sample(faults, many):
                    found = await trial.inject(proxy, shape, kind, starts=starts)
                    assert trial.wrong == [], (shape, kind)
                    met[found] += 1
                print(f"{len(faults)} faults, {met[True]} of {met.total()} met, {trial.ended.total()} ends answered")
                assert met[True] > (0 if many else met.total() / 3), met  # the rest comes rarely: once a renewal
                await judge(redis, trial, server.url)
                await trial.client.aclose()
                assert await asyncio.to_thread(service.stop) == 0
        audit = await penstock("audit", KEYS.namespace, redis=server.url)
        assert audit.status == 0, audit.text


async def judge(redis: "Redis", trial: Points, url: str) -> None:
    """Every task has ended; each has one record, one end in the events, and was said to have ended once at most."""
    parts = [KEYS.queue("/points", part) for part in ("ready", "held", "later", "behind")]
    async with asyncio.timeout(PATIENCE) as patience:
        while await redis.exists(*parts):
            ended = trial.ended.total()
            await trial.work()
            if trial.ended.total() > ended:
                patience.reschedule(asyncio.get_running_loop().time() + PATIENCE)
    found: Any = await redis.hgetall(QUEUE)
    records = {id.decode(): json.loads(text) for id, text in found.items()}
    assert {record["state"] for record in records.values()} == {*ENDS}
    names = {record["name"]: id for id, record in records.items()}
    assert len(names) == len(records)
    assert names == trial.ids
    assert max(trial.ended.values()) == 1
    assert {records[id]["state"] for id, many in trial.ended.items() if many} == {"done"}
    lives = dict[str, list[str]]()
    for event in await events_of(url):
        lives.setdefault(event.id, []).append(event.event)
    assert {*lives} == {*records}
    for id, several in lives.items():
        assert several.count("registered") == 1, several
        assert [each for each in several if each in ENDS] == [several[-1]] == [records[id]["state"]], several
