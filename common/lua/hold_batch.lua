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
-- ARGV batch    most messages to return
-- ARGV bytes    no more are returned once they reach this size together
-- ARGV takes    1 to take from the source, 0 to return only what is pending
-- Returns the messages, oldest first, how many are pending, and the bytes of the largest one read. Run twice: the same
-- again, or more.
local refused = wrong_type({list = {pending, source}, hash = {holds, missing, taken}})
if refused then return refused end
batch, bytes = tonumber(batch), tonumber(bytes)
local here, found = redis.call('LLEN', pending), {}
note(pending, here)
local count = several(pending, 0, math.min(here, batch), bytes)
while count > 0 do
  local messages = redis.call('LRANGE', pending, -#found - count, -#found - 1)
  saw(messages)
  for place = #messages, 1, -1 do found[#found + 1] = messages[place] end
  count = several(pending, #found, math.min(here, batch) - #found, bytes)
end
local before = #found
if takes == '1' and before == here then
  take(source, pending, found, math.min(batch - before, redis.call('LLEN', source)), bytes)
  enter(#found - before)
  keep(pending, here, #found)
  here = #found
end
return {found, here, largest_read}
