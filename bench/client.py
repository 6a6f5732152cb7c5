"""Bare client that sends requests and waits for their answers, with a given number in flight.

``python -m bench.client PORT LIST REPLIES`` reads lines of two numbers, requests to send and requests in flight, and
prints JSON: ``seconds`` for all requests, ``p50`` seconds for one.
"""

import json
import statistics
import sys
import time
from typing import Final

from bench.connection import Connection, packed

BODY: Final = "x" * 32


class Client:
    """Push each request on its own, as many callers would; fail unless each is answered once."""

    def __init__(self, connection: Connection, source: str, replies: str) -> None:
        self._connection, self._source, self._replies = connection, source, replies
        self._asked: dict[str, float] = {}
        self._last = 0

    def measure(self, requests: int, concurrency: int) -> dict[str, float]:
        take = packed("BLMPOP", 10, 1, self._replies, "RIGHT", "COUNT", concurrency)
        waits: list[float] = []
        begin = time.perf_counter()
        while len(waits) < requests:
            room = min(concurrency, requests - len(waits)) - len(self._asked)
            pushes = [self._request() for _ in range(room)]
            popped = self._connection.exchange(b"".join([*pushes, take]), len(pushes) + 1)[-1]
            assert popped, f"{len(self._asked)} requests were not answered within 10 s"
            now = time.perf_counter()
            waits += [now - self._asked.pop(json.loads(answer)["meta"]["id"]) for answer in popped[1]]
        return {"seconds": time.perf_counter() - begin, "p50": statistics.median(waits)}

    def _request(self) -> bytes:
        self._last += 1
        id = str(self._last)
        self._asked[id] = time.perf_counter()
        request = f'{{"meta":{{"id":"{id}","replyTo":"{self._replies}"}},"body":"{BODY}"}}'
        return packed("LPUSH", self._source, request)


if __name__ == "__main__":
    port, source, replies = sys.argv[1:]
    client = Client(Connection(int(port)), source, replies)
    for order in sys.stdin:
        requests, concurrency = map(int, order.split())
        print(json.dumps(client.measure(requests, concurrency)), flush=True)
