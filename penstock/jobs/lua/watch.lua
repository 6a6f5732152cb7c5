-- Find out whether a consumer is one of those that keep what consumers of others publish of a stream.
--
-- WITH types: wrong_type
-- WITH streams: named
-- KEYS stream     stream  jobs
-- KEYS keepers    zset    consumers that do so, by when their turn ends (s since the epoch)
-- ARGV consumer   who asks
-- ARGV prefix     what the names of our consumers begin with
-- ARGV silent     how long (ms) a consumer that has nothing in hand has not been heard of that is dead
-- ARGV lease      how long a turn is (s)
-- ARGV most       maximum number of consumers that do so
-- Returns 1 if it is; 0 if enough others are, or all consumers are ours. Run twice: the same again.
local call = redis.call
local refused = wrong_type({zset = {keepers}})
if refused then return refused end

local function has_others()
  if call('TYPE', stream).ok ~= 'stream' then return false end
  for _, group in ipairs(call('XINFO', 'GROUPS', stream)) do
    for _, each in ipairs(call('XINFO', 'CONSUMERS', stream, named(group).name)) do
      local one = named(each)
      if string.sub(one.name, 1, #prefix) ~= prefix and one.name ~= consumer
        and (one.pending > 0 or one.idle < tonumber(silent)) then
        return true
      end
    end
  end
  return false
end

if not has_others() then
  call('ZREM', keepers, consumer)
  return 0
end
local time = call('TIME')
local now = time[1] + time[2] / 1e6
call('ZREMRANGEBYSCORE', keepers, '-inf', now)
if not call('ZSCORE', keepers, consumer) and call('ZCARD', keepers) >= tonumber(most) then return 0 end
call('ZADD', keepers, now + lease, consumer)
return 1
