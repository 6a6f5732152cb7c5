"""mdedupe and mlimit as processes, with the least rights: a chain of both, and what they send while nothing comes."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from penstock.accounting.audit import audit
from penstock.base.keys import Keys
from penstock.testing.server import EmbeddedServer
from services.mdedupe import settings as mdedupe
from services.mlimit import settings as mlimit
from tests.support.harness import Service, until

ONCE: dict[str, Any] = {"redis_namespace": "t:once", "in_": "t:raw", "pending": "t:raw:pending", "out": "t:in"}
RATE: dict[str, Any] = {
    "redis_namespace": "t:rate",
    "in_": "t:in",
    "pending": "t:in:pending",
    "out": "t:out",
    "rate": 50,
}
SECONDS = 4
"""How long commands of idle services are counted."""


@pytest.fixture
def own() -> Iterator[EmbeddedServer]:
    with EmbeddedServer() as started:
        yield started


def with_rights(server: EmbeddedServer, settings: Any, user: str) -> str:
    """Create ``user`` with the rights that the service says it needs; return the URL with its login."""
    (rights,) = settings.rights().values()
    with Redis(port=server.port) as redis:
        redis.execute_command(*[word.strip('"') for word in rights.line(user).replace("PASSWORD", "pw").split()])
    return f"redis://{user}:pw@127.0.0.1:{server.port}/0"


@pytest.mark.parametrize(
    ("once", "rate"),
    [
        ({}, {}),
        ({"by": "id", "duplicates": "t:again"}, {"by": "field", "field": "user"}),
        ({"by": "field", "field": "n"}, {"over": "answer", "burst": 100, "reply_lists": ["t:reply:*"]}),
    ],
)
def test_equal_messages_pass_once_and_at_a_rate_with_the_least_rights(
    own: EmbeddedServer, tmp_path: Path, once: dict[str, Any], rate: dict[str, Any]
) -> None:
    url = f"redis://127.0.0.1:{own.port}/0"
    first = mdedupe.Settings(redis=url, **ONCE, **once)
    second = mlimit.Settings(redis=url, **RATE, **rate)
    messages = [
        json.dumps({"id": str(n), "replyTo": "t:reply:1", "meta": {"id": n}, "user": n % 2, "n": n}) for n in range(100)
    ]
    with ExitStack() as stack, Redis.from_url(url, decode_responses=True) as redis:
        redis.lpush("t:raw", *messages, *messages)
        services = [
            stack.enter_context(Service(name, tmp_path / name, **words, redis=with_rights(own, settings, name)))
            for name, settings, words in (("mdedupe", first, ONCE | once), ("mlimit", second, RATE | rate))
        ]
        until(lambda: redis.llen("t:out") == len(messages))
        assert sorted(redis.lrange("t:out", 0, -1)) == sorted(messages)
        assert redis.hget("t:once:metrics:duplicate", "count") == "100"
        assert [each.stop() for each in services] == [0, 0]
        log: Any = redis.execute_command("ACL", "LOG")
        assert [each for each in log if "setinfo" not in str(each["object"])] == []
    assert asyncio.run(problems(url)) == [[], []]


async def problems(url: str) -> list[list[str]]:
    async with AsyncRedis.from_url(url) as redis:
        audits = [await audit(redis, Keys(name)) for name in ("t:once", "t:rate")]
    return [found.problems for found in audits if found]


def test_without_messages_they_send_fewer_than_three_commands_a_second(own: EmbeddedServer, tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{own.port}/0"
    ways: dict[str, dict[str, Any]] = {"mdedupe": ONCE, "mlimit": RATE | {"by": "field", "field": "user"}}
    for name, words in ways.items():
        with Redis.from_url(url) as redis, Service(name, tmp_path / name, **words, redis=url) as service:
            until(lambda: redis.info("clients")["blocked_clients"] == 1)
            before = redis.info("stats")["total_commands_processed"]
            time.sleep(SECONDS)  # the time in which commands are counted
            assert redis.info("stats")["total_commands_processed"] - before < 3 * SECONDS, name
            assert service.stop() == 0
