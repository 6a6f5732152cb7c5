-- Take over what consumers hold whose leases have ended, one after the other until one holds something: its messages are
-- older than all in the source. A consumer that had one, or settled each, has died of the oldest: that is a failed delivery. Of
-- several nobody knows which one it was; the caller settles each, so its death would tell.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH failures: failures_of set_failures
-- KEYS working     list  the caller's; nothing is done unless it is empty
-- KEYS consumers   zset  consumers of the source, by the end of their lease (us since the epoch)
-- KEYS steps       hash  number of the last step of each consumer, and `idle` behind it while it has nothing in hand, `each` while
--                        it settles each message before the next; `gone:<us>` since another one has adopted its messages
-- KEYS orphans...  list  what each of them has taken and not settled
-- ARGV who         the caller; nothing is done if it has left meanwhile
-- ARGV grace       how long a command of a dead one, delayed on its way, may still add to its list (us)
-- ARGV again       when to look at that list again meanwhile (us), later each time
-- ARGV dead...     the dead consumers, one of each list
-- Returns how many messages were adopted, and the place of their consumer among these, from 1 on. Run twice: the second run
-- finds nothing, or goes on behind those that hold nothing.
local call = redis.call
local refused = wrong_type({list = {working}, zset = {consumers}, hash = {steps, failures}}) or wrong_type({list = orphans})
if refused then return refused end
local mine = call('HGET', steps, who)
if not mine or string.find(mine, 'gone', 1, true) or call('EXISTS', working) == 1 then return {0, 0} end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
for place, orphan in ipairs(orphans) do
  local lease = call('ZSCORE', consumers, dead[place])
  if lease and tonumber(lease) < now then
    local adopted, state = call('LLEN', orphan), call('HGET', steps, dead[place]) or ''
    if adopted > 0 then
      call('RENAME', orphan, working)
      local oldest, is_known = call('LINDEX', working, -1), adopted == 1 or string.find(state, 'each', 1, true)
      if is_known and not string.find(state, 'idle', 1, true) then set_failures(oldest, failures_of(oldest) + 1) end
      call('HSET', steps, who, string.match(mine, '%d+') .. ' each')
    end
    local since = string.match(state, '^gone:(%d+)')
    if adopted == 0 and since and since + grace < now then
      call('ZREM', consumers, dead[place])
      call('HDEL', steps, dead[place])
    else
      local next_look = now + math.max(again, (now - (since or now)) / 2)
      call('ZADD', consumers, string.format('%d', next_look), dead[place])
      call('HSET', steps, dead[place], since and 'gone:' .. since or string.format('gone:%d', now))
    end
    if adopted > 0 then return {adopted, place} end
  end
end
return {0, 0}
