"""Tests of a next service that is down for longer than ``replyExpire``: messages pushed to its ``in`` are not lost."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis as blocking

from penstock.testing.server import EmbeddedServer
from tests.support.harness import Service, until

REPLY_EXPIRE = 1
TRACKING: dict[str, Any] = {
    "redis_namespace": "first",
    "in": "first:in",
    "pending": "first:pending",
    "out": "first:work",
    "res": "first:answers",
    "message_timeout": 1,
    "attempts": 1,
    "reply_expire": REPLY_EXPIRE,
}
NEXT: dict[str, Any] = {"redis_namespace": "next", "in": "next:in", "pending": "next:pending", "out": "next:out"}
ACCEPTED = [b"accepted %d" % number for number in range(1000)]
"""Messages that other publishers push to the next service, which the server accepts."""


class Chain:
    """A server with mdispatch, a monitor, and a next service."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self._stack, self._directory = stack, directory
        server = stack.enter_context(EmbeddedServer())
        self.redis = blocking.Redis(port=server.port)
        self._url = server.url

    def track(self, allowed: str) -> None:
        self.start("mdispatch", **TRACKING, reply_lists=allowed)
        self.start("monitor", redis_namespace="watcher", watch="first", metrics_port=0)

    def start(self, name: str, **settings: Any) -> Service:
        service = Service(name, self._directory / name, redis=self._url, **settings)
        self._stack.enter_context(service)
        until(lambda: '"registered"' in service.log_text())
        return service

    def ask(self, id: str) -> None:
        self.redis.lpush("first:in", json.dumps({"meta": {"id": id, "replyTo": "next:in"}}))
        until(lambda: self.redis.hexists("first:metrics:taken", "count"))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("end", ["answered", "timed out"])
@pytest.mark.parametrize("allowed", ["next:in", "next:*"], ids=["named in full", "by a pattern"])
def test_a_next_service_that_is_down_for_longer_than_reply_expire_gets_all_that_was_accepted(
    stack: ExitStack, tmp_path: Path, allowed: str, end: str
) -> None:
    """It was never started, so the owner of its list is unknown; the first message pushed to it is an answer."""
    chain = Chain(stack, tmp_path)
    chain.track(allowed)
    chain.ask("a")
    if end == "answered":
        chain.redis.lpush("first:answers", '{"meta": {"id": "a"}}')
    else:
        until(lambda: chain.redis.rpop("first:work"))  # a worker takes it, and dies
    until(lambda: chain.redis.llen("next:in") == 1)
    for message in ACCEPTED:
        chain.redis.lpush("next:in", message)
    time.sleep(2 * REPLY_EXPIRE)  # the outage itself
    until(lambda: chain.redis.ttl("next:in") == -1)
    chain.start("mpush", **NEXT)
    until(lambda: chain.redis.llen("next:out") == 1 + len(ACCEPTED))
    assert chain.redis.lrange("next:out", 0, -1)[:-1] == ACCEPTED[::-1]
    assert chain.redis.hgetall("first:metrics:answers") == {b"count": b"1", b"lasting": b"1"}


def test_a_next_service_that_was_there_before_is_known_and_no_pattern_allows_its_list(
    stack: ExitStack, tmp_path: Path
) -> None:
    chain = Chain(stack, tmp_path)
    following = chain.start("mpush", **NEXT)
    until(lambda: chain.redis.hexists("penstock:registered", "next"))
    following.kill()
    chain.track("*")
    for message in ACCEPTED:
        chain.redis.lpush("next:in", message)
    chain.ask("a")
    until(lambda: chain.redis.llen("first:dead") == 1)
    assert json.loads(chain.redis.lindex("first:dead", 0) or b"")["reason"] == "badRequest"
    assert (chain.redis.llen("next:in"), chain.redis.ttl("next:in")) == (len(ACCEPTED), -1)
