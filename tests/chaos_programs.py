"""Programs that move messages from one list to another, most of them as they should not: ``... NAME`` runs one.

Each is restarted when it fails, and stops at SIGTERM when nothing is in its hands, so that nothing but its way of
moving messages is to blame.
"""

import os
import signal
import sys
from collections.abc import Callable
from hashlib import sha1
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

IN, WORKING, OUT, SECOND = "shop:in", "shop:working", "shop:out", "shop:second"


def pops_and_pushes(server: Any) -> None:
    """As many scripts in the world do."""
    if message := server.brpop([IN], 1):
        server.lpush(OUT, message[1])


def acknowledges_first(server: Any) -> None:
    if message := server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        server.lrem(WORKING, 1, message)
        server.lpush(OUT, message)


def fans_out_bit_by_bit(server: Any) -> None:
    """What was in its hands when it failed goes first, to both lists."""
    if message := server.lindex(WORKING, -1) or server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        server.lpush(OUT, message)
        server.lpush(SECOND, message)
        server.lrem(WORKING, 1, message)


def settles_at_once(server: Any) -> None:
    if message := server.lindex(WORKING, -1) or server.blmove(IN, WORKING, 1, "RIGHT", "LEFT"):
        with server.pipeline(transaction=True) as transaction:
            transaction.lpush(OUT, message).lpush(SECOND, message).lrem(WORKING, 1, message).execute()


def finishes(server: Any) -> None:
    """A worker of mdispatch: keeps the request and says that it is done, at once."""
    work, hand = "every:work", "every:work:working"
    if message := server.lindex(hand, -1) or server.blmove(work, hand, 1, "RIGHT", "LEFT"):
        with server.pipeline(transaction=True) as transaction:
            transaction.lpush("every:kept", message).lpush("every:mdispatch:done", sha1(message).hexdigest())
            transaction.lrem(hand, 1, message).execute()


PROGRAMS: Final[dict[str, Callable[[Any], None]]] = {
    each.__name__: each
    for each in (pops_and_pushes, acknowledges_first, fans_out_bit_by_bit, settles_at_once, finishes)
}


def main(name: str) -> None:
    orders: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: orders.append(number))
    url = os.environ["REDIS"]
    server = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=3, protocol=2)
    while not orders:
        PROGRAMS[name](server)


if __name__ == "__main__":
    main(sys.argv[1])
