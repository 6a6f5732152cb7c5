"""Shell lines from mpush-redis's documents on messages and metrics, with mdispatch and a monitor running."""

from collections.abc import AsyncIterator
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from tests.support.commandline import penstock
from tests.support.harness import Service, eventually

SETTINGS: dict[str, object] = {
    "redis_namespace": "demo:mpush",
    "in_": "demo:mpush:in",
    "pending": "demo:mpush:pending",
    "out": "demo:mpush:out0",
    "message_timeout": 5,
    "attempts": 1,
    "message_expire": 60,
}


@pytest.fixture
async def shell(redis: Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[Any]:
    """Yield a function: ``await shell("lpush demo:mpush:in 12345")`` returns what redis-cli would print."""

    async def run(line: str) -> str:
        result = await penstock("redis", *line.split(), redis=redis_url)
        assert result.status == 0, result.error
        return result.text.rstrip("\n")

    watching: dict[str, object] = {"redis_namespace": "demo:monitor", "watch": "demo:mpush", "metrics_port": 0}
    with (
        Service("mdispatch", tmp_path / "mdispatch.log", redis=redis_url, **SETTINGS),
        Service("monitor", tmp_path / "monitor.log", redis=redis_url, **watching),
    ):
        yield run


def fields(reply: str) -> dict[str, str]:
    words = reply.splitlines()
    return dict(zip(words[::2], words[1::2], strict=True))


async def test_a_message_is_looked_up_done_and_timed_out_as_the_documents_say(shell: Any) -> None:
    for message in ("hello", '{"meta":{"id":"a"}}', "12345"):
        assert await shell(f"lpush demo:mpush:in {message}")
    await eventually(lambda: is_so(shell, "llen demo:mpush:out0", "3"))

    assert await shell("lrange demo:mpush:message:ids 0 -1") == "3\n2\n1"
    record = fields(await shell("hgetall demo:mpush:message:3"))
    assert record.keys() >= {"timestamp", "xid", "deadline", "service"}
    assert record["xid"] == "12345"
    assert record["service"] == await shell("lindex demo:mpush:ids 0")
    assert float(record["deadline"]) - float(record["timestamp"]) == pytest.approx(5, abs=1e-5)
    assert 0 < int(await shell("ttl demo:mpush:message:3")) <= 60
    assert fields(await shell("hgetall demo:mpush:message:xid:12345")) == {"id": "3", "type": "number"}
    assert fields(await shell("hgetall demo:mpush:message:xid:a")) == {"id": "2", "type": "meta"}
    digest = sha1(b"hello").hexdigest()
    assert fields(await shell(f"hgetall demo:mpush:message:xid:{digest}")) == {"id": "1", "type": "sha1"}

    assert await shell("rpop demo:mpush:out0 3")
    await shell("lpush demo:mpush:done 3")
    await eventually(lambda: is_so(shell, "hget demo:mpush:metrics:done count", "1"))
    assert await shell("exists demo:mpush:message:3 demo:mpush:message:xid:12345") == "0"
    assert await shell("lrange demo:mpush:message:ids 0 -1") == "3\n2\n1"
    done = fields(await shell("hgetall demo:mpush:metrics:done"))
    assert done.keys() >= {"count", "sum", "max"}

    await eventually(lambda: is_so(shell, "hget demo:mpush:metrics:timeout count", "2"))
    timeout = fields(await shell("hgetall demo:mpush:metrics:timeout"))
    assert timeout.keys() == {"count", "sum", "max", "histo100"}
    assert timeout["histo100"] == "2"
    assert 5 <= float(timeout["max"]) < 15
    assert 10 <= float(timeout["sum"]) <= 2 * float(timeout["max"])
    assert await shell("exists demo:mpush:message:ids") == "0"
    names = sorted((await shell("keys demo:mpush:metrics:*")).splitlines())
    known = ["dead", "delivered", "done", "events", "registered", "start", "taken", "timeout"]
    names = [name for name in names if not name.endswith(":overdue")]  # on a busy machine the worker may be late
    assert names == [f"demo:mpush:metrics:{name}" for name in known]


async def is_so(shell: Any, line: str, expected: str) -> bool:
    return str(await shell(line)) == expected
