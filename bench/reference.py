"""Reference for mpush: the smallest possible program, without recovery, counters or a way to stop."""

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
"""It does not even turn the batch round, so it puts messages in the wrong order: the fastest of its kind."""


def drain(redis: "Redis", source: str, lists: list[str], batch: int = 500) -> None:
    """Move the whole backlog of ``source``, one batch a round trip."""
    move = redis.register_script(MINIMAL_LOOP)
    while move(keys=[source, *lists], args=[batch]):
        pass


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
