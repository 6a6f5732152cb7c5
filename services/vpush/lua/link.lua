-- Record the state of the link, and what has crossed it since the last call.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS link     hash   state since reason rtt waiting oldest at; `known` messages of `source` existed at `since_known`
-- KEYS batches  hash   metric: batches that arrived, their bytes and round trips
-- KEYS state    hash   `source`, the source id for the other server, and `sequence`, the number of the last settled message
-- KEYS pending  list   taken and not settled
-- KEYS source   list   what publishers push to
-- KEYS lease    hash   owner token expires of the one active replica
-- ARGV token    the lease's fencing token that the caller holds; if another instance holds it, nothing is written
-- ARGV now      `up` or `down`
-- ARGV reason   why it is down, or empty
-- ARGV count    batches that arrived
-- ARGV bytes    bytes of them together
-- ARGV sum      sum of their round trips (s)
-- ARGV most     the longest of them (s)
-- ARGV last     the last of them (s), empty if none arrived
-- Returns how many messages wait. Run twice: the batches are counted twice.
local call, pcall = redis.call, redis.pcall
local refused = wrong_type({hash = {link, batches, state}})
if refused then return refused end
if call('HGET', lease, 'token') ~= token then return 0 end
local here, waiting = pcall('LLEN', pending), pcall('LLEN', source)
if type(here) == 'table' or type(waiting) == 'table' then return 0 end
waiting = waiting + here
local time = call('TIME')
local at = string.format('%d.%06d', time[1], time[2])
local who, settled = unpack(call('HMGET', state, 'source', 'sequence'), 1, 2)
settled = tonumber(settled or 0) or 0
local known = call('HMGET', link, 'state', 'known', 'since_known', 'source')

-- Until all messages counted now have arrived, the oldest one that waits is at least as old as this count.
if settled >= (tonumber(known[2]) or 0) or known[4] ~= who then
  known[2], known[3] = settled + waiting, at
  call('HSET', link, 'known', string.format('%.0f', known[2]), 'since_known', at, 'source', who or '')
end
if known[1] ~= now then call('HSET', link, 'state', now, 'since', at) end
call('HSET', link, 'reason', reason, 'waiting', string.format('%.0f', waiting), 'at', at,
  'oldest', waiting > 0 and string.format('%.3f', at - (tonumber(known[3]) or at)) or '0')
if last ~= '' then
  call('HSET', link, 'rtt', last)
  pcall('HINCRBY', batches, 'count', count)
  pcall('HINCRBY', batches, 'bytes', bytes)
  local before = call('HMGET', batches, 'sum', 'max')
  call('HSET', batches, 'sum', string.format('%.6f', sum + (tonumber(before[1]) or 0)),
    'max', string.format('%.6f', math.max(most, tonumber(before[2]) or 0)))
end
return waiting
