-- Move messages of `waiting` that are due to `out`, those that have been due for longest first. All or none.
--
-- WITH lease
-- WITH types: wrong_type
-- WITH held: note keep
-- WITH tallies: tally write_tallies
-- WITH forward: bring_forward
-- KEYS waiting    zset  messages that wait, behind 16 digits each, by the time at which they get their token (us)
-- KEYS out        list  where messages go
-- KEYS settled    hash  metric: messages that left the pending list and `waiting`
-- KEYS delivered  hash  metric: messages pushed
-- KEYS lease?     hash  owner token expires of the one active replica
-- ARGV interval   us in which a bucket gets one token: the first message waits for no longer
-- ARGV token      the lease's fencing token that the caller holds
-- ARGV batch      maximum number of messages to move
-- ARGV bytes      no more are moved once they reach this size together
-- Returns messages moved, and the us until the next one is due, -1 if none waits. Run twice: the second run moves those that
-- are due by then.
local DIGITS, PIECE = 16, 16
local call = redis.call
local refused = wrong_type({list = {out}, zset = {waiting}, hash = {holds, missing, taken, settled, delivered}})
if refused then return refused end
batch, bytes, interval = tonumber(batch), tonumber(bytes), tonumber(interval)
local time = call('TIME')
local now = time[1] * 1e6 + time[2]
-- A removal of nothing: a full server refuses no write after it. Messages that move take no memory.
call('ZREM', waiting, '')
local waits = call('ZCARD', waiting)
note(waiting, waits)
bring_forward(now, interval)

local moved, size, largest, piece, found = 0, 0, 1, 1
repeat
  local due = call('ZRANGEBYSCORE', waiting, '-inf', now, 'LIMIT', 0, math.min(piece, batch - moved))
  found = {}
  for place, entry in ipairs(due) do
    found[place] = string.sub(entry, DIGITS + 1)
    size, largest = size + #found[place], math.max(largest, #found[place])
  end
  if #found > 0 then
    call('ZREMRANGEBYRANK', waiting, 0, #found - 1)
    call('LPUSH', out, unpack(found, 1, #found))
    moved = moved + #found
  end
  -- The sizes of the next ones are not known.
  piece = math.max(1, math.min(4 * piece, PIECE, math.floor((bytes - size) / largest)))
until #found == 0 or moved >= batch or size >= bytes

keep(waiting, waits, waits - moved)
tally(settled, 'count', moved)
tally(taken, out, moved)
tally(delivered, out, moved)
tally(delivered, 'count', moved)
write_tallies()
local first = call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
return {moved, first and math.max(math.ceil(tonumber(first) - now), 0) or -1}
