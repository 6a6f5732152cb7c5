-- Take over what a consumer holds whose lease has ended: its messages are older than all in the source.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS orphan     list   what the dead consumer has taken and not settled
-- KEYS working    list   the caller's; nothing is done unless it is empty
-- KEYS consumers  zset   consumers of the source, by the end of their lease (us since the epoch)
-- KEYS steps      hash   number of the last step of each consumer; `gone:<us>` since another one has adopted its messages
-- ARGV dead       the dead consumer
-- ARGV grace      how long a command of it, delayed on its way, may still add to its list (us)
-- ARGV again      when to look at its list again meanwhile (us)
-- Returns how many messages were adopted. Run twice: the second run finds nothing.
local call = redis.call
local refused = wrong_type({list = {orphan, working}, zset = {consumers}, hash = {steps}})
if refused then return refused end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local lease = call('ZSCORE', consumers, dead)
if not lease or tonumber(lease) >= now or call('EXISTS', working) == 1 then return 0 end
local adopted = call('LLEN', orphan)
if adopted > 0 then call('RENAME', orphan, working) end
local since = string.match(call('HGET', steps, dead) or '', '^gone:(%d+)')
if adopted == 0 and since and since + grace < now then
  call('ZREM', consumers, dead)
  call('HDEL', steps, dead)
else
  call('ZADD', consumers, string.format('%d', now + again), dead)
  call('HSET', steps, dead, since and 'gone:' .. since or string.format('gone:%d', now))
end
return adopted
