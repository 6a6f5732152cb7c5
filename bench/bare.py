"""Reference for mdispatch: a bare loop in the server that writes the same records."""

from typing import Any, Final

from redis import Redis

from penstock.keys import Keys

DISPATCH: Final = """
local messages = redis.call('RPOP', KEYS[1], ARGV[1])
if not messages then return 0 end
local call, out, ns, capacity = redis.call, KEYS[2], ARGV[2] .. ':message:', ARGV[3]
local time = call('TIME')
local stamp, at = string.format('%d.%06d', time[1], time[2]), string.format('%d%03d', time[1], time[2] / 1000)
local deadline = string.format('%.6f', time[1] + time[2] / 1e6 + 600)
local first = call('INCRBY', ns .. 'id', #messages) - #messages
local pushed = call('HINCRBY', ns .. 'pushed', out, #messages) - #messages
local ids, xids, deadlines = {}, {}, {}
for place, message in ipairs(messages) do
  local id, xid = string.format('%d', first + place), redis.sha1hex(message)
  local record, key = ns .. id, ns .. 'xid:' .. xid
  call('HSET', record, 'timestamp', stamp, 'xid', xid, 'deadline', deadline, 'service', 1, 'attempt', 1, 'queue', out,
    'number', pushed + place, 'message', message)
  call('EXPIRE', record, 3600)
  call('HSETNX', key, 'id', id)
  call('HSET', key, 'type', 'sha1')
  call('EXPIRE', key, 3600)
  ids[place], xids[place], deadlines[2 * place - 1], deadlines[2 * place] = id, xid, deadline, id
end
call('LPUSH', out, unpack(messages))
call('LPUSH', ns .. 'ids', unpack(ids))
call('LTRIM', ns .. 'ids', 0, capacity - 1)
call('ZADD', ns .. 'deadlines', unpack(deadlines))
local written = call('HINCRBY', ARGV[2] .. ':metrics:events', 'count', #messages) - #messages
for from = 1, #messages, 100 do
  local to = math.min(from + 99, #messages)
  call('XADD', KEYS[3], '*', 'first', written + from, 'count', to - from + 1, 'event', 'registered',
    'id', table.concat(ids, '\\n', from, to), 'xid', table.concat(xids, '\\n', from, to), 'at', at, 'queue', out,
    'service', 1, 'attempt', 1, 'seconds', '')
end
call('XTRIM', KEYS[3], 'MAXLEN', '~', 1000)
return #messages
"""
"""It asks no key for its type, looks at no message for an xid of its own, and loses what it has in hand when it dies.

HSETNX and not HSET, since two equal messages must not become one; the xid it has to make itself.
"""


def dispatch(redis: "Redis", source: str, out: str, namespace: str, batch: int = 500) -> None:
    """Register and deliver the whole backlog of ``source``, one batch a round trip."""
    move, keys = redis.register_script(DISPATCH), [source, out, Keys(namespace).events]
    while move(keys=keys, args=[batch, namespace, 10**7]):
        pass


def written(redis: Any, namespace: str, out: str) -> dict[str, Any]:
    """What a dispatch has left, less what differs from one to the next: equal for all who write the same."""
    keys = Keys(namespace)
    newest = redis.lindex(keys.message_ids, 0).decode()
    record = redis.hgetall(keys.message(newest))
    xid = keys.xid(record[b"xid"].decode())
    ((_, event),) = redis.xrevrange(keys.events, count=1)
    return {
        "record": {field: len(value) for field, value in record.items() if field != b"queue"},
        "xid": sorted(redis.hgetall(xid)),
        "event": sorted(event),
        "expiry": [redis.ttl(key) > 3000 for key in (keys.message(newest), xid)],
        "message": redis.lindex(out, 0),
        "lengths": [redis.llen(out), redis.llen(keys.message_ids), redis.zcard(keys.deadlines)],
        "events": int(event[b"first"]) + int(event[b"count"]) - 1,
    }
