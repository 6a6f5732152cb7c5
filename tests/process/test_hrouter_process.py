"""hrouter as a process: requests in, lists and answers out; its rules change; it is killed and another goes on."""

import json
import signal
from pathlib import Path

from redis import Redis

from penstock.base.keys import Keys
from tests.support.harness import Service, until
from tests.support.importers import write_rules

KEYS = Keys("web:hrouter")
REQUESTS = 2_000


def push(redis: "Redis", first: int, path: str) -> list[bytes]:
    """Push ``REQUESTS`` requests; return them."""
    made = [
        json.dumps({"id": str(number), "replyTo": "web:res:1", "method": "GET", "path": f"{path}/{number}"}).encode()
        for number in range(first, first + REQUESTS)
    ]
    redis.lpush("web:req", *made)
    return made


def test_requests_are_routed_and_answered_through_a_reload_and_a_kill(redis_url: str, tmp_path: Path) -> None:
    routes, log, redis = tmp_path / "routes.yaml", tmp_path / "log", Redis.from_url(redis_url)
    redis.flushall()
    write_rules(routes, {"prefix": "/a", "to": "web:a"}, {"prefix": "/no", "respond": {"status": 403, "body": "no"}})
    lists = {"in": "web:req", "pending": "web:req:pending", "reply_lists": "web:res:*", "pop_timeout": 5}
    settings = {"redis": redis_url, "redis_namespace": "web:hrouter", "rules": routes, "service_expire": 30, **lists}

    def start() -> Service:
        return Service("hrouter", log, **settings)

    with redis, start() as first:
        sent = push(redis, 0, "/a")
        push(redis, REQUESTS, "/no")
        until(lambda: first.runs() and redis.llen("web:res:1") == REQUESTS)
        assert redis.lrange("web:a", 0, -1)[::-1] == sent
        assert {json.loads(answer)["status"] for answer in redis.lrange("web:res:1", 0, -1)} == {403}

        write_rules(routes, {"prefix": "/a", "to": "web:b"})
        first.signal(signal.SIGHUP)
        until(lambda: redis.hget(KEYS.metric("reload"), "count") == b"1")
        more = push(redis, 2 * REQUESTS, "/a")
        until(lambda: redis.llen("web:b"))
        first.kill()
        redis.delete(KEYS.instance("1"))
        with start() as second:
            until(lambda: second.runs() and redis.llen("web:b") == REQUESTS)
            assert sorted(redis.lrange("web:b", 0, -1)) == sorted(more)
            assert second.stop() == 0
    assert redis.llen("web:a") == REQUESTS
    assert not redis.exists("web:req", KEYS.dead)
    redis.close()
