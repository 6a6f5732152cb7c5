"""Consumer that needs no library of Penstock: ``python -m compose.weather.consumer archive|alarm|report [name]``.

It moves a message to its own list, acts on it, and settles it in one MULTI. If it is killed in between, the message
stays in ``<list>:working:<name>`` until the next start: nothing is lost, and nothing is written twice.
"""

import json
import os
import random
import signal
import sys
import time
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final, cast

import redis
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.retry import Retry

from compose.weather.day import Day

BATCH: Final = 500
WAIT_SECONDS: Final = 1
"""Maximum wait for a message, and so for the exit after a SIGTERM (s)."""
UNAVAILABLE: Final = (redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError, redis.OutOfMemoryError)
HANDLED: Final = {
    "archive": "weather:archived",
    "alarm": "weather:alarm:handled",
    "report": "weather:report:handled",
}
"""List in which each consumer keeps every message that it has settled."""


def archive(row: bytes) -> Iterator[tuple[str, str]]:
    yield from ()  # nothing to write: every handled row is kept


def alarm(row: bytes) -> Iterator[tuple[str, str]]:
    day = Day.read(row)
    if day.storm:
        yield "weather:storms", day.alarm()


def report(row: bytes) -> Iterator[tuple[str, str]]:
    yield "weather:reports", Day.read(row).report()


ACTS: Final[dict[str, Callable[[bytes], Iterator[tuple[str, str]]]]] = {
    "archive": archive,
    "alarm": alarm,
    "report": report,
}


class Consumer:
    """One consumer; consumers of the same list need different names. A signal handler may call ``stop``."""

    def __init__(self, server: redis.Redis, role: str, name: str = "1") -> None:
        self.server, self.role = server, role
        self.source = f"weather:{role}"
        self.working = f"{self.source}:working:{name}"
        self.running = True

    def run(self) -> None:
        while self.running:
            try:
                self.settle()  # what an earlier run left
                while self.running:
                    if self.take():
                        self.settle()
            except UNAVAILABLE as error:
                print(f"{self.role}: waiting for the server: {error}", file=sys.stderr)
                time.sleep(random.uniform(0.1, 0.5))

    def stop(self, *_: object) -> None:
        self.running = False

    def take(self) -> bool:
        """Move the next message, and the backlog behind it, to the working list. Never BLPOP: that loses it."""
        if self.server.blmove(self.source, self.working, WAIT_SECONDS, src="RIGHT", dest="LEFT") is None:
            return False
        backlog = min(self.server.llen(self.source), BATCH - 1)
        with self.server.pipeline(transaction=False) as moves:
            for _ in range(backlog):
                moves.lmove(self.source, self.working, src="RIGHT", dest="LEFT")
            moves.execute()
        return True

    def settle(self) -> None:
        """Write the results and remove the messages, all or none; retry if the working list changed meanwhile."""
        self.server.transaction(self._settle, self.working)

    def _settle(self, transaction: Pipeline) -> None:
        messages = cast(list[bytes], transaction.lrange(self.working, 0, -1))
        transaction.multi()
        for key, lines in self.act(messages[::-1]).items():
            transaction.lpush(key, *lines)
        transaction.delete(self.working)

    def act(self, messages: list[bytes]) -> dict[str, list[bytes | str]]:
        """Return what to write, by list, for ``messages``, oldest first; an invalid row goes to ``<list>:dead``."""
        results: dict[str, list[bytes | str]] = defaultdict(list)
        for message in messages:
            results[HANDLED[self.role]].append(message)
            try:
                for key, line in ACTS[self.role](message):
                    results[key].append(line)
            except ValueError as error:
                letter = {"message": message.decode(errors="backslashreplace"), "reason": str(error)}
                results[f"{self.source}:dead"].append(json.dumps(letter))
        return results


def main(role: str, name: str = "1") -> None:
    url = os.environ.get("REDIS", "redis://localhost:6379/0")
    # A BLMOVE that redis-py silently retries would take a second message.
    server = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=WAIT_SECONDS + 10, protocol=2)
    consumer = Consumer(server, role, name)
    signal.signal(signal.SIGTERM, consumer.stop)
    signal.signal(signal.SIGINT, consumer.stop)
    consumer.run()


if __name__ == "__main__":
    parser = ArgumentParser(prog="python -m compose.weather.consumer", description=__doc__)
    parser.add_argument("role", choices=ACTS)
    parser.add_argument("name", nargs="?", default="1")
    main(**vars(parser.parse_args()))
