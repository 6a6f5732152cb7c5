"""References for mpush and settle: the smallest possible programs, without recovery, counters or a way to stop."""

import sys
from typing import Final

from redis import Redis

MINIMAL_LOOP: Final = """
local messages = redis.call('LRANGE', KEYS[1], -ARGV[1], -1)
if #messages == 0 then return 0 end
for list = 2, #KEYS do redis.call('LPUSH', KEYS[list], unpack(messages)) end
redis.call('LTRIM', KEYS[1], 0, -#messages - 1)
return #messages
"""
"""It does not even reverse the batch, so it delivers messages in the wrong order: the fastest of its kind."""


def drain(redis: "Redis", source: str, lists: list[str], batch: int = 500) -> None:
    """Move the whole backlog of ``source``, one batch per round trip."""
    move = redis.register_script(MINIMAL_LOOP)
    while move(keys=[source, *lists], args=[batch]):
        pass


HOLD: Final = """
local messages = redis.call('RPOP', KEYS[1], ARGV[1])
if messages then redis.call('LPUSH', KEYS[2], unpack(messages)) end
return messages or {}
"""


def route(redis: "Redis", source: str, pending: str, routes: dict[bytes, str], batch: int = 500) -> None:
    """Move each message of ``source`` to the list of its first letter: hold a batch, then settle it with MULTI."""
    hold = redis.register_script(HOLD)
    while messages := hold(keys=[source, pending], args=[batch]):
        to: dict[str, list[bytes]] = {}
        for message in messages:
            to.setdefault(routes[message[:1]], []).append(message)
        with redis.pipeline(transaction=True) as transaction:
            for name, some in to.items():
                transaction.lpush(name, *some)
            transaction.rpop(pending, len(messages))
            transaction.execute()


def forward(redis: "Redis", source: str, pending: str, lists: list[str]) -> None:
    """Move one message at a time, forever: BLMOVE, then MULTI."""
    while True:
        message: str | None = redis.execute_command("BLMOVE", source, pending, "RIGHT", "LEFT", 10)
        if message is not None:
            with redis.pipeline(transaction=True) as transaction:
                for each in lists:
                    transaction.lpush(each, message)
                transaction.lrem(pending, -1, message)
                transaction.execute()


if __name__ == "__main__":
    url, source, pending, *lists = sys.argv[1:]
    forward(Redis.from_url(url), source, pending, lists)
