"""hrouter on a server: lists, answers, dead letters and late requests, and rules that change under load."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from common.process import Process
from penstock.accounting.audit import audit
from penstock.base.keys import Keys
from services.hrouter.service import run
from services.hrouter.settings import Settings
from tests.support.harness import eventually

KEYS = Keys("web:hrouter")
RULES: list[dict[str, Any]] = [
    {"prefix": "/private", "respond": {"status": 403, "body": "no"}},
    {"prefix": "/old", "redirect": "/new"},
    {"prefix": "/api", "method": "POST", "to": "web:api", "retry": True},
    {"prefix": "/api", "to": "web:api"},
]


def request(id: str, path: str, **more: Any) -> str:
    return json.dumps({"id": id, "replyTo": "web:res:3", "method": "GET", "path": path, **more})


@asynccontextmanager
async def routing(url: str, props: Path, rules: list[dict[str, Any]], **more: Any) -> AsyncIterator[None]:
    """Run hrouter by a props file until the block ends; it must end with status 0."""
    write(props, rules, redis=url, **more)
    service = asyncio.create_task(Process(Settings.load(props, {}), run).serve())
    yield
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(service, 30) == 0


def write(props: Path, rules: list[dict[str, Any]], **more: Any) -> None:
    names = {"redisNamespace": "web:hrouter", "in": "web:req", "pending": "web:req:pending", "popTimeout": 5}
    new = props.with_suffix(".new")
    new.write_text(yaml.safe_dump({**names, "replyLists": ["web:res:*"], "rules": rules, **more}))
    new.replace(props)


async def oldest_first(redis: Any, name: str) -> list[Any]:
    return [json.loads(each) for each in reversed(await redis.lrange(name, 0, -1))]


async def settled(redis: Any, count: int) -> None:
    async def is_settled() -> bool:
        return int(await redis.hget(KEYS.metric("settled"), "count") or 0) >= count

    await eventually(is_settled)


async def assert_adds_up(redis: Any) -> dict[str, tuple[int, int, int]]:
    """Assert that the audit holds; return delivered, dead and dropped by list."""
    found = await audit(redis, KEYS)
    assert found
    assert found.holds, found.problems
    return {leg.name: (leg.delivered, leg.dead, leg.dropped) for leg in found.legs}


async def test_each_request_goes_to_one_list_or_gets_one_answer(redis: Any, redis_url: str, tmp_path: Path) -> None:
    requests = [
        request("1", "/api/a"),
        request("2", "/private/b"),
        request("3", "/api/c", method="POST"),
        request("4", "/nowhere"),
        "no request",
        request("5", "/old", replyTo="web:req"),
        request("6", "/old"),
        request("7", "/api/late", deadline=1.0),
        request("8", "/api/d", deadline=9e9),
    ]
    await redis.lpush("web:req", *requests)
    async with routing(redis_url, tmp_path / "hrouter.yaml", RULES):
        await settled(redis, len(requests))
    assert await oldest_first(redis, "web:api") == [json.loads(requests[place]) for place in (0, 8)]
    assert await redis.lrange("web:api:retry", 0, -1) == [requests[2].encode()]
    answers = await oldest_first(redis, "web:res:3")
    assert [(answer["id"], answer["status"]) for answer in answers] == [("2", 403), ("4", 404), ("6", 302)]
    assert 0 < await redis.ttl("web:res:3") <= 60
    letters = await oldest_first(redis, KEYS.dead)
    assert [(letter["message"], letter["reason"]) for letter in letters] == [
        ("no request", "badRequest"),
        (requests[5], "badReplyTo"),
    ]
    by_list = {"web:api": (2, 0, 0), "web:api:retry": (1, 0, 0), "web:req": (3, 2, 1)}
    assert await assert_adds_up(redis) == by_list


async def test_a_list_that_another_service_uses_gets_no_answer(redis: Any, redis_url: str, tmp_path: Path) -> None:
    await redis.hset("penstock:registered", "other", json.dumps({"web:res:7": "in"}))
    await redis.lpush("web:req", request("1", "/", replyTo="web:res:7"))
    async with routing(redis_url, tmp_path / "hrouter.yaml", RULES):
        await settled(redis, 1)
    (letter,) = await oldest_first(redis, KEYS.dead)
    assert letter["reason"] == "badReplyTo"
    assert not await redis.exists("web:res:7")


async def test_a_list_that_stands_still_is_answered_for_until_it_moves(
    redis: Any, redis_url: str, tmp_path: Path
) -> None:
    """A rule counts the lists behind its own, too; requests without a deadline or a reply list pass in any case."""
    rules = [
        {"prefix": f"/{breaker}", "to": f"web:{breaker}", "breaker": breaker, "waits": ["web:work"]}
        for breaker in ("refuse", "cached", "accept")
    ]
    pushed = 0

    async def push(path: str, seconds: float | None = 0.9, **more: Any) -> None:
        nonlocal pushed
        now, micros = await redis.time()
        times = {} if seconds is None else {"deadline": now + micros / 1e6 + seconds}
        pushed += 1
        await redis.lpush("web:req", request(str(pushed), path, **times, **more))
        await settled(redis, pushed)

    async def is_broken(answers: int) -> bool:
        await push("/refuse")
        return int(await redis.llen("web:res:3")) > answers

    await redis.lpush("web:work", "stands still")
    async with routing(redis_url, tmp_path / "hrouter.yaml", rules):
        await eventually(lambda: is_broken(0))
        begin = await redis.llen("web:res:3")
        await push("/cached")
        await push("/accept")
        passed = [int(await redis.llen(f"web:{name}")) for name in ("cached", "accept")]
        await push("/cached", None)
        await push("/cached", replyTo="web:elsewhere")
        await push("/cached", 30)
        assert await redis.llen("web:cached") == passed[0] + 3 == 3
        await redis.delete("web:work", "web:cached", *(rule["to"] for rule in rules))

        async def passes() -> bool:
            await push("/accept")
            return bool(await redis.exists("web:accept"))

        await eventually(passes)
    answers = await oldest_first(redis, "web:res:3")
    assert {answer["status"] for answer in answers} == {503}
    assert [answer.get("otherwise") for answer in answers[begin - 1 : begin + 2]] == [None, "cached", "accept"]
    for answer in answers:
        headers = dict(answer["headers"])
        assert 1 <= int(headers["retry-after"]) <= 60
        assert "too many" in answer["body"]
    broken = {name.decode(): int(count) for name, count in (await redis.hgetall(KEYS.metric("broken"))).items()}
    assert broken.pop("count") == len(answers) == sum(broken.values())
    assert broken.keys() == {rule["to"] for rule in rules}
    await assert_adds_up(redis)


async def test_rules_that_change_under_load_lose_and_double_nothing(redis: Any, redis_url: str, tmp_path: Path) -> None:
    """Each reload sends requests to another list; one with a mistake is refused and changes nothing."""
    props, pushed = tmp_path / "hrouter.yaml", 0

    def to(name: str) -> list[dict[str, Any]]:
        return [{"prefix": "/private", "respond": {"status": 403}}, {"match": "all", "to": name}]

    async def reloads(field: str, count: int) -> None:
        async def done() -> bool:
            return int(await redis.hget(KEYS.metric("reload"), field) or 0) >= count

        await eventually(done)

    async def push(ended: asyncio.Event) -> None:
        nonlocal pushed
        while not ended.is_set():
            paths = ("/private" if number % 5 == 0 else "/x" for number in range(100))
            await redis.lpush("web:req", *(request(str(pushed + place), path) for place, path in enumerate(paths)))
            pushed += 100
            await settled(redis, pushed - 1_000)

    async with routing(redis_url, props, to("web:list0")):
        ended = asyncio.Event()
        pushing = asyncio.create_task(push(ended))
        for number in range(1, 6):
            await settled(redis, pushed + 1)
            write(props, to(f"web:list{number}"), redis=redis_url)
            os.kill(os.getpid(), signal.SIGHUP)
            await reloads("count", number)
        write(props, [{"path": "(", "to": "web:never"}], redis=redis_url)
        os.kill(os.getpid(), signal.SIGHUP)
        await reloads("failed", 1)
        ended.set()
        await pushing
        await settled(redis, pushed)
    lists = [await oldest_first(redis, name) for name in (*(f"web:list{number}" for number in range(6)), "web:res:3")]
    assert all(lists)
    assert sorted(int(each["id"]) for some in lists for each in some) == list(range(pushed))
    assert [each["id"] for each in lists[-1]] == [str(number) for number in range(0, pushed, 5)]
    await assert_adds_up(redis)


async def test_the_least_rights_are_enough(redis: Any, redis_url: str, tmp_path: Path) -> None:
    props = tmp_path / "hrouter.yaml"
    rules = [*RULES, {"prefix": "/slow", "to": "web:slow", "breaker": "refuse", "waits": ["work"]}]
    write(props, rules, redis=redis_url)
    rights = Settings.load(props, {}).rights()[redis_url]
    await redis.execute_command(*rights.line("router").replace("PASSWORD", "secret").split())
    own = redis_url.replace("redis://", "redis://router:secret@")
    try:
        await redis.lpush("web:req", request("1", "/api/a"), request("2", "/private/b"), "no request")
        async with routing(own, props, rules):
            await settled(redis, 3)
    finally:
        await redis.execute_command("ACL", "DELUSER", "router")
    assert [await redis.llen(name) for name in ("web:api", "web:res:3", KEYS.dead)] == [1, 1, 1]
