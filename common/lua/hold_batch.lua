-- Return the oldest messages of a pending list; take more from the source if there are fewer than wanted.
--
-- WITH lease
-- WITH types: wrong_type
-- WITH reading: several take saw largest_read
-- WITH held: note enter keep
-- KEYS pending  list  what this instance has taken and not settled (oldest at the tail)
-- KEYS source   list  what publishers push to (newest at the head)
-- KEYS lease?   hash  owner token expires of the one active replica
-- ARGV token    the lease's fencing token that the caller holds
-- ARGV skip     how many of the oldest the caller has read before: return those behind them
-- ARGV batch    maximum number of messages to return
-- ARGV bytes    no more are returned once they reach this size together
-- ARGV takes    1 to take from the source, 0 to return only what is pending
-- Returns the messages, oldest first, how many are pending, the bytes of the largest one read, and the time (s since the
-- epoch). Run twice: the same again, or more.
local refused = wrong_type({list = {pending, source}, hash = {holds, missing, taken}})
if refused then return refused end
skip, batch, bytes = tonumber(skip), tonumber(batch), tonumber(bytes)
local here, found = redis.call('LLEN', pending), {}
local unread = here - skip
note(pending, here)
local count = several(pending, skip, math.min(unread, batch), bytes)
while count > 0 do
  local messages = redis.call('LRANGE', pending, -skip - #found - count, -skip - #found - 1)
  saw(messages)
  for place = #messages, 1, -1 do found[#found + 1] = messages[place] end
  count = several(pending, skip + #found, math.min(unread, batch) - #found, bytes)
end
local before = #found
if takes == '1' and before == unread then
  take(source, pending, found, math.min(batch - before, redis.call('LLEN', source)), bytes)
  enter(#found - before)
  keep(pending, here, skip + #found)
  here = skip + #found
end
local time = redis.call('TIME')
return {found, here, largest_read, string.format('%d.%06d', time[1], time[2])}
