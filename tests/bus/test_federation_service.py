"""Services of another site: requests and answers over its queues."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from penstock.base.errors import RequestFailed, RequestTimeout, Unauthorized, WrongCall
from penstock.bus import Bus, Request
from tests.bus.gateway import SECRET, ends, serving, url_of
from tests.bus.sites import Site
from tests.support.harness import eventually


async def price(request: Request) -> int:
    return {"tea": 3, "rice": 2}[request.data["item"]]


async def count(request: Request) -> AsyncIterator[int]:
    for number in range(request.data):
        yield number


@ends
async def test_a_requester_far_away_gets_answers(site: Site, bus: Bus) -> None:
    provider, client = bus.service("price"), site.service()
    await provider.serve(price)
    await client.connect()
    assert client.is_connected
    assert await client.request({"item": "tea"}, timeout=60) == 3
    asked = (client.request({"item": item}, timeout=60) for item in ("tea", "rice") * 20)
    assert await asyncio.gather(*asked) == [3, 2] * 20
    with pytest.raises(RequestFailed, match="nothing"):
        await client.request({"item": "nothing"}, timeout=60)
    await client.disconnect()
    with pytest.raises(WrongCall):
        await client.request({"item": "tea"})


@ends
async def test_a_provider_far_away_answers(site: Site, bus: Bus, redis: "Redis") -> None:
    provider, client = site.service(), bus.service("price")
    await provider.serve(price)
    await client.connect()
    assert await client.request({"item": "rice"}, timeout=60) == 2
    asked = (client.request({"item": item}, timeout=60) for item in ("tea", "rice") * 10)
    assert await asyncio.gather(*asked) == [3, 2] * 10
    with pytest.raises(RequestFailed, match="nothing"):
        await client.request({"item": "nothing"}, timeout=60)
    await client.disconnect()
    gone = "service:price:replyTo:gone"
    requests = bus.queue("service:price")
    await requests.attach()
    await requests.push({"data": {"item": "tea"}, "replyTo": gone, "reqId": "1"}, json=True)
    await requests.push({"data": {"item": "tea"}, "replyTo": "another", "reqId": "2"}, json=True)
    await eventually(lambda: _is_empty(redis))
    await provider.disconnect(grace=60)
    assert not await redis.keys(f"bus:queue:{gone}:*")
    assert not await redis.keys("bus:queue:another:*")


async def _is_empty(redis: "Redis") -> bool:
    return not await redis.llen("bus:queue:service:price:messages")


@ends
async def test_parts_come_in_order(site: Site, bus: Bus) -> None:
    provider, client = site.service("count"), bus.service("count")
    await provider.serve(count)
    await client.connect()
    assert [part async for part in client.stream(5, timeout=60)] == [0, 1, 2, 3, 4]


@ends
async def test_both_may_be_far_away_and_nobody_may_be_there(site: Site) -> None:
    provider, client = site.service(), site.service()
    await client.connect()
    with pytest.raises(RequestTimeout):
        await client.request({"item": "tea"}, timeout=0.2)
    await provider.serve(price)
    assert await client.request({"item": "tea"}, timeout=60) == 3


@ends
async def test_it_needs_the_queues_of_the_service(redis: "Redis", redis_url: str) -> None:
    allowed = ["service:price", "service:price:*"]
    async with serving(redis_url, queues=allowed) as gateway, Bus(patience=30) as far, Bus(redis_url) as near:
        await near.service("price").serve(price)
        client, provider = (far.federate(far.service("price"), url_of(gateway), secret=SECRET) for _ in range(2))
        await client.connect()
        await provider.serve(price)
        away = list[tuple[bool, bool]]()
        for each in (client, provider):
            assert each.role
            each.role.requests.on("reconnecting", lambda _: away.append((client.is_connected, provider.is_serving)))
        gateway.drop_all()
        await eventually(lambda: client.is_connected and provider.is_serving and len(away) == 2)
        assert away[-1] == (False, False)
        assert await client.request({"item": "tea"}, timeout=60) == 3
        with pytest.raises(Unauthorized):
            await far.federate(far.service("other"), url_of(gateway), secret=SECRET).connect()
