-- Take over the pending list of a dead instance, in order: its messages are older than the caller's own.
--
-- FLAGS allow-oom
-- WITH held: still_counted keep
-- WITH types: wrong_type
-- KEYS orphan     list   the dead instance's pending list
-- KEYS own        list   the caller's pending list (oldest at the tail)
-- KEYS owners?    zset   ids that may hold a pending list, by the time they were last seen alive (s since the epoch); given
--                        with the last of an instance's lists
-- KEYS holdings?  hash   names of an instance's pending lists, by its id; given with owners
-- ARGV id         the dead instance's id; removed from both once no command of it can add to its list any more
-- ARGV grace      how long after its last sign of life a blocked command of it may still add to its list (s)
-- Returns how many messages were adopted. Messages that the orphan should have held and did not stay on record as missing,
-- under its own name. Run twice: the second run finds nothing.
local refused = wrong_type({list = {orphan, own}, hash = {holds, missing, holdings}, zset = {owners}})
if refused then return refused end
local adopted, here = redis.call('LLEN', orphan), redis.call('LLEN', own)
-- The shorter list goes to the end of the longer one.
if adopted > here then
  for _ = 1, here do redis.call('LMOVE', own, orphan, 'RIGHT', 'LEFT') end
  redis.call('RENAME', orphan, own)
else
  for _ = 1, adopted do redis.call('LMOVE', orphan, own, 'LEFT', 'RIGHT') end
end
local theirs, ours = still_counted(orphan, adopted), still_counted(own, here)
keep(orphan, theirs, 0)
keep(own, ours, theirs + ours)
local seen = owners and redis.call('ZSCORE', owners, id)
if seen and seen + grace < tonumber(redis.call('TIME')[1]) then
  redis.call('ZREM', owners, id)
  if holdings then redis.call('HDEL', holdings, id) end
end
return adopted
