-- Take over what a dead instance had taken and not settled, in order: its messages are older than one's own.
--
-- FLAGS allow-oom
-- KEYS orphan     list   the dead instance's pending list
-- KEYS own        list   the caller's pending list (oldest at the tail)
-- KEYS owners?    zset   ids that may hold a pending list, by the time they were last seen alive (s since the epoch); with
--                        the last of an instance's lists
-- KEYS holdings?  hash   how their lists are called, by id; with owners
-- ARGV id         the dead instance's id; forgotten once nothing can arrive in its list any more
-- ARGV grace      how long after its last sign of life a blocked command of it may still add to its list (s)
-- Returns how many messages were adopted. Run twice: the second run finds nothing.
for _, key in ipairs({orphan, own}) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'list' and kind ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. kind .. ', expected a list')
  end
end
local adopted = redis.call('LLEN', orphan)
if adopted > 0 and redis.call('EXISTS', own) == 0 then
  redis.call('RENAME', orphan, own)
else
  for _ = 1, adopted do redis.call('LMOVE', orphan, own, 'LEFT', 'RIGHT') end
end
local seen = owners and redis.call('ZSCORE', owners, id)
if seen and seen + grace < tonumber(redis.call('TIME')[1]) then
  redis.call('ZREM', owners, id)
  if holdings then redis.call('HDEL', holdings, id) end
end
return adopted
