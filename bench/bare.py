"""Reference for mdispatch: a minimal Lua script that writes the same records."""

from typing import Any, Final

from redis import Redis

from penstock.base.keys import Keys

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
"""It checks no types, never reads a correlation id from a message, and loses the batch in hand when it dies.

It uses HSETNX, not HSET, so that two equal messages stay two; it has to compute the xid itself.
"""


def dispatch(redis: "Redis", source: str, out: str, namespace: str, batch: int = 500) -> None:
    """Register and deliver the whole backlog of ``source``, one batch per round trip."""
    move, keys = redis.register_script(DISPATCH), [source, out, Keys(namespace).events]
    while move(keys=keys, args=[batch, namespace, 10**7]):
        pass


def written_records(redis: Any, namespace: str, out: str) -> dict[str, Any]:
    """Return what a dispatch wrote, without what differs between runs; equal for programs that write the same."""
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
