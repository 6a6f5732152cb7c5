"""Bare lists, to compare with ``penstock.bus``: ``python -m bench.bus_bare URL`` takes orders as ``bench.bus_ours``."""

import json
import statistics
import sys
import time
from typing import Any, Final

from redis import Redis

from bench.bus_ours import say

WORKING: Final = "bench:working"


def wait(redis: "Redis", name: str, count: int) -> None:
    """Take ``count`` messages with BLMOVE, each the time (ns) of its push; answer with the median wait."""
    say()
    waits = list[int]()
    while len(waits) < count:
        message: bytes = redis.execute_command("BLMOVE", name, WORKING, "RIGHT", "LEFT", 10)
        waits.append(time.perf_counter_ns() - int(message))
        redis.rpop(WORKING)
    say(p50=statistics.median(waits) / 1e9)


def push_now_and_then(redis: "Redis", name: str, count: int, seconds: float) -> None:
    """Push the time (ns) ``count`` times, ``seconds`` apart; answer once it is done."""
    for _ in range(count):
        time.sleep(seconds)
        redis.lpush(name, str(time.perf_counter_ns()))
    say()


def serve(redis: "Redis", name: str) -> None:
    """Answer each request with its data, forever."""
    say()
    while True:
        taken: Any = redis.execute_command("BLMOVE", name, WORKING, "RIGHT", "LEFT", 0)
        found = json.loads(taken)
        redis.lpush(found["replyTo"], json.dumps({"reqId": found["reqId"], "reply": found["data"]}))
        redis.rpop(WORKING)


def request(redis: "Redis", name: str, count: int, at_a_time: int) -> None:
    """Send ``count`` requests one after the other; answer with the seconds for all and the median for one."""
    assert at_a_time == 1
    waits = list[float]()
    begin = time.perf_counter()
    for number in range(count):
        asked = time.perf_counter()
        redis.lpush(name, json.dumps({"reqId": number, "replyTo": f"{name}:re", "data": {"number": number}}))
        _, answer = redis.execute_command("BLPOP", f"{name}:re", 10)
        assert json.loads(answer)["reply"] == {"number": number}
        waits.append(time.perf_counter() - asked)
    say(seconds=time.perf_counter() - begin, p50=statistics.median(waits))


ORDERS: Final = {each.__name__: each for each in (wait, push_now_and_then, serve, request)}

if __name__ == "__main__":
    with Redis.from_url(sys.argv[1], socket_timeout=None) as redis:
        for line in sys.stdin:
            order, *values = json.loads(line)
            ORDERS[order](redis, *values)
