"""Each service is killed with something in hand, its server restarts, and each message is accounted for by content."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from redis.asyncio import Redis as AsyncRedis

from penstock.base.errors import Full, Unconfirmed
from penstock.base.ports import free_port
from penstock.bus import Bus
from penstock.jobs import Jobs
from penstock.testing.forkserver import ForkServer
from penstock.testing.server import EmbeddedServer
from tests.jobs.given import kept
from tests.reliability.conftest import Launch
from tests.reliability.fleet import (
    Dispatching,
    Watching,
    assert_all_settled,
    assert_done,
    assert_registry_clean,
    register,
)
from tests.reliability.importing import OUT, Load, importer
from tests.reliability.importing import Worker as Answering
from tests.reliability.replica import Replica
from tests.reliability.two_servers import TwoServers, assert_once_in_order, numbered
from tests.support.federated import SECRET, far
from tests.support.harness import PATIENCE, Service, eventually, until
from tests.support.importers import is_ready
from tests.support.outbox_site import Place
from tests.support.shop import GROUP, STREAM, Shop, Worker, are_up, audited, write_app

MESSAGES = numbered(1_000)


def restart(server: EmbeddedServer) -> None:
    server.kill()
    server.start()


def test_mpush_mdispatch_hrouter_mdedupe_mlimit_and_mbalance_deliver_each_message_once(launch: Launch) -> None:
    with EmbeddedServer(aof=True) as server:
        fleet = launch(server)
        killed = fleet.up()
        fleet.waiting()
        killed.signal(signal.SIGSTOP)
        fleet.push_to_suspended(MESSAGES[:1])
        id = str(fleet.id_of(killed))
        killed.kill()
        fleet.forget(killed)
        fleet.up()
        fleet.push(MESSAGES[1:500])
        restart(server)
        fleet.push(MESSAGES[500:])
        assert_all_settled(fleet, MESSAGES, killed=[id])


@pytest.mark.parametrize("service", [Watching()], ids=["monitor"])
def test_monitor_ends_each_request_once(launch: Launch) -> None:
    requests = [b"%d" % number for number in range(10**9, 10**9 + 100)]
    with EmbeddedServer(aof=True) as server:
        dispatch, fleet = launch(server, Dispatching()), launch(server, Watching())
        dispatch.up(message_timeout=3600, message_expire=36000)
        register(dispatch, requests)
        killed = fleet.up()
        fleet.waiting(2)
        killed.signal(signal.SIGSTOP)
        fleet.push(requests[:1])
        until(fleet.pending)
        id = str(fleet.id_of(killed))
        killed.kill()
        fleet.forget(killed)
        fleet.up()
        fleet.push(requests[1:50])
        restart(server)
        fleet.push(requests[50:])
        assert_done(dispatch, fleet, len(requests))
        fleet.stop()
        assert_registry_clean(fleet, killed=[id])


def test_vpush_delivers_each_message_once_and_in_order(fork_server: ForkServer, tmp_path: Path) -> None:
    with (
        EmbeddedServer(aof=True) as here,
        EmbeddedServer(aof=True) as there,
        TwoServers(here.url, there.url, fork_server, tmp_path) as fleet,
    ):
        killed = fleet.up()
        fleet.push(MESSAGES[:100])
        fleet.wait_until_settled()
        os.kill(there.pid, signal.SIGSTOP)  # so that what it has sent stays in flight
        fleet.push(MESSAGES[100:300])
        until(fleet.pending)
        id = str(fleet.id_of(killed))
        killed.kill()
        fleet.forget(killed)
        fleet.let_the_lease_run_out()
        os.kill(there.pid, signal.SIGCONT)
        fleet.up()
        fleet.push(MESSAGES[300:500])
        restart(here)
        fleet.push(MESSAGES[500:])
        restart(there)
        fleet.wait_until_settled()
        fleet.stop()
        assert_once_in_order(fleet, MESSAGES)
        assert_registry_clean(fleet, killed=[id])


async def test_himporter_gives_each_client_the_answer_to_its_own_request(tmp_path: Path) -> None:
    port = free_port()
    with EmbeddedServer(aof=True) as server, ExitStack() as stack:
        services = [importer(server.url, port, tmp_path / str(number), share_port=True) for number in range(2)]
        for each in services:
            stack.enter_context(each)
        worker = stack.enter_context(Answering(server.url))
        await asyncio.to_thread(until, lambda: is_ready(port))
        async with Load(port) as load:
            await load.served()
            await asyncio.to_thread(services[0].kill)
            await load.served()
            await asyncio.to_thread(restart, server)
            await load.served()
        assert load.wrong == []
        assert await asyncio.to_thread(services[1].stop) == 0
        await asyncio.to_thread(until, lambda: not worker.redis.llen(OUT))


def test_hqueue_ends_each_task_once_with_its_own_result(fork_server: ForkServer, tmp_path: Path) -> None:
    port, numbers = free_port(), range(40)
    with EmbeddedServer(aof=True) as server, httpx.Client(base_url=f"http://127.0.0.1:{port}/queues/n") as client:
        given = {"redis": server.url, "redis_namespace": "work", "listen_port": port}
        with Replica(fork_server, "hqueue", tmp_path / "log", **given) as service:
            until(lambda: is_ready(port))
            bodies = [{"value": number, "id": f"number {number}"} for number in numbers]
            ids = [each["taskId"] for each in client.post("/tasks", json=bodies).json()]
            lost = client.post("/fetch", json={"workerId": "dies", "timeToRecover": 1}).json()
            service.kill()
            service.start()
            until(lambda: is_ready(port))
            restart(server)
            ended = list[str]()
            until(lambda: _works(client, lost, ended) and len(ended) == len(numbers), every=0)
            assert sorted(ended) == sorted(ids)
            found = [client.get(f"/tasks/{id}").json() for id in ids]
            assert [(each["state"], each["result"]) for each in found] == [("done", 2 * number) for number in numbers]
            assert service.stop() == 0


def _works(client: httpx.Client, lost: dict[str, Any], ended: list[str]) -> bool:
    """Take a task, if there is one and the server is not away, and end it; return True.

    Whoever had it before cannot end it any more.
    """
    with suppress(httpx.TransportError):
        reply = client.post("/fetch", json={"workerId": "w", "timeToRecover": 3600, "wait": 1})
        if reply.status_code == 200:
            task = reply.json()
            if task["taskId"] == lost["taskId"]:
                late = client.post("/ack", json={"taskToken": lost["taskToken"], "result": "late"})
                assert late.status_code == 409, late.text
            done = client.post("/ack", json={"taskToken": task["taskToken"], "result": 2 * task["value"]})
            assert done.status_code == 200, done.text
            ended.append(task["taskId"])
        else:
            assert reply.status_code in (204, 503), reply.text
    return True


async def test_gateway_loses_nothing_that_it_confirmed(tmp_path: Path) -> None:
    port, taken, confirmed = free_port(), set[str](), set[str]()
    settings = {"redis_namespace": "site:gateway", "listen_host": "127.0.0.1", "listen_port": port, "secret": SECRET}
    with EmbeddedServer(aof=True) as server, Service("gateway", tmp_path / "log", redis=server.url, **settings) as gate:
        async with Bus(patience=PATIENCE) as producing, Bus(patience=PATIENCE) as consuming:
            source, sink = far(producing, port), far(consuming, port)
            await source.attach(ttl=3600)
            await sink.attach(ttl=3600)

            async def consume() -> None:
                async for message in sink.consume(reliable=True):
                    taken.add(str(message))
                    message.ack()

            async def push(disturb: Callable[[], object]) -> None:
                pushes = {f"{disturb.__name__} {number}": None for number in range(200)}
                under_way = {body: source.push(body) for body in pushes}
                await asyncio.sleep(0)
                await asyncio.to_thread(disturb)
                for body, pushed in under_way.items():
                    with suppress(Unconfirmed):
                        await pushed
                        confirmed.add(body)

            def kill() -> None:
                gate.kill()
                gate.start()

            def restart_server() -> None:
                restart(server)

            consumer = asyncio.create_task(consume())
            await push(kill)
            await push(restart_server)
            await source.push("last")
            await eventually(lambda: confirmed | {"last"} <= taken)
            small = far(producing, port, "small")
            await small.attach(ttl=3600, maxsize=10)
            found = await asyncio.gather(*map(small.push, "abcdefghijklmno"), return_exceptions=True)
            assert found[:10] == [*range(1, 11)]
            assert {*map(type, found[10:])} == {Full}
            consumer.cancel()
            await asyncio.gather(consumer, return_exceptions=True)
        assert gate.stop() == 0


async def test_worker_does_each_job_once(tmp_path: Path) -> None:
    write_app(tmp_path, "one")
    with EmbeddedServer(aof=True) as server, Worker(tmp_path, server.url, processes=2) as service:
        async with Jobs(server.url) as jobs:
            shop = Shop(jobs, asyncio.Queue())
            async with AsyncRedis.from_url(server.url) as redis:
                await eventually(lambda: service.runs() and are_up(redis, 2))
            [held] = await shop.send(verb="wait")
            await eventually(lambda: held.progress(GROUP))
            killed = await held.progress(GROUP)
            psutil.Process(killed).kill()
            (tmp_path / "go").touch()
            [(_, attempt, pid)] = await shop.results([held])
            assert (attempt, pid != killed) == (2, True)
            sent = await shop.send(20)
            await asyncio.to_thread(restart, server)
            sent += await shop.send(20)
            assert {version for version, *_ in await shop.results(sent)} == {"one"}
            async with AsyncRedis.from_url(server.url) as redis:
                ends = Counter(each["job"] for each in await kept(redis, STREAM))
            assert ends == Counter(each.job.id for each in shop.sent)
        assert await asyncio.to_thread(service.stop) == 0
        await audited(server.url, 41)


def test_outbox_delivers_each_message_once(tmp_path: Path) -> None:
    sent = [b"%d" % number for number in range(600)]
    with EmbeddedServer(aof=True) as server, ExitStack() as ends:
        one, two = (Place(name, server.url, tmp_path, ends) for name in ("one", "two"))
        at_one, at_two = one.up(batch=20), two.up(batch=20, subscribe=f"one@{one.address}")
        one.until_subscribed()
        one.push(*sent[:300])
        until(lambda: two.has(20))
        at_one.kill()
        at_two.kill()
        at_one, at_two = one.up(batch=20), two.up(batch=20, subscribe=f"one@{one.address}")
        one.push(*sent[300:])
        restart(server)
        until(lambda: len(two.arrived()) >= len(sent) and one.settled())
        until(lambda: not one.stored("outgoing") and not two.stored("incoming"))
        assert sorted(two.arrived()) == sorted(sent)
        for place in (one, two):
            assert asyncio.run(place.problems()) == []
        assert (at_one.stop(), at_two.stop()) == (0, 0)
