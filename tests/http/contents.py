"""What a server holds, to compare before and after: DUMP of one hash may differ from one time to the next."""

from typing import Any, Final

import redis as sync

from penstock.base.encoding import decoded

READ: Final = {
    "string": lambda redis, key: redis.get(key),
    "list": lambda redis, key: redis.lrange(key, 0, -1),
    "hash": lambda redis, key: redis.hgetall(key),
    "set": lambda redis, key: redis.smembers(key),
    "zset": lambda redis, key: redis.zrange(key, 0, -1, withscores=True),
    "stream": lambda redis, key: redis.xrange(key),
}


def contents(redis: "sync.Redis", pattern: str = "*") -> dict[bytes, Any]:
    """Return what all keys hold whose names match ``pattern``."""
    kinds = {key: decoded(redis.type(key)) for key in redis.scan_iter(pattern)}
    return {key: READ[kind](redis, key) for key, kind in kinds.items() if kind != "none"}  # gone since
