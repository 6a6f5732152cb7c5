"""A bare client: asks and waits for answers, as many under way as it is told.

``python -m bench.client PORT LIST REPLIES`` reads lines of two numbers, how many requests and how many at a time, and
prints what it took as JSON: ``seconds`` for all, ``p50`` for one.
"""

import json
import statistics
import sys
import time
from typing import Final

from bench.line import Line, packed

BODY: Final = "x" * 32


class Client:
    """Each request is pushed by itself, as by many callers; each is answered once or the client fails."""

    def __init__(self, line: Line, source: str, replies: str) -> None:
        self._line, self._source, self._replies = line, source, replies
        self._asked: dict[str, float] = {}
        self._last = 0

    def measure(self, requests: int, at_a_time: int) -> dict[str, float]:
        take = packed("BLMPOP", 10, 1, self._replies, "RIGHT", "COUNT", at_a_time)
        waits: list[float] = []
        begin = time.perf_counter()
        while len(waits) < requests:
            room = min(at_a_time, requests - len(waits)) - len(self._asked)
            pushes = [self._request() for _ in range(room)]
            popped = self._line.exchange(b"".join([*pushes, take]), len(pushes) + 1)[-1]
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
    client = Client(Line(int(port)), source, replies)
    for order in sys.stdin:
        requests, at_a_time = map(int, order.split())
        print(json.dumps(client.measure(requests, at_a_time)), flush=True)
