-- Give a message in flight more time: its deadline becomes `seconds` from now, unless it is later already.
--
-- FLAGS allow-oom
-- WITH events: report write_events
-- WITH types: wrong_type
-- KEYS record      hash    the message's record
-- KEYS deadlines   zset    ids in flight by deadline (s since the epoch); those that wait untaken by UNTAKEN + their number
-- KEYS policy      hash    what mdispatch wrote at start; without it nothing is tracked
-- KEYS touched     hash    metric: messages that were given more time
-- KEYS xid?        hash    the record of the message's xid, which lives as long
-- ARGV id          the message's id
-- ARGV seconds     how long from now, above 0 (s); empty: the policy's messageTimeout
-- ARGV attempt     the attempt that the worker has; empty: the current one, whatever its number
-- Returns the deadline (s since the epoch, as text), false if no such message is in flight, or an empty text if a younger
-- attempt is under way. Run twice: the deadline is `seconds` from the second run, and two are counted.
local UNTAKEN = 1e12
local call = redis.call
local refused = wrong_type({hash = {record, policy, touched, events_written, xid}, zset = {deadlines, events_marks},
    stream = {events}})
if refused then return refused end
local rules = call('HMGET', policy, 'messageTimeout', 'messageExpire', 'eventCapacity')
local known = call('HMGET', record, 'timestamp', 'delivered', 'xid', 'queue', 'service', 'attempt')
local due = call('ZSCORE', deadlines, id)
seconds = tonumber(seconds) or tonumber(rules[1])
if not due or not known[1] or not seconds then return false end
if (tonumber(attempt) or math.huge) < (tonumber(known[6]) or 0) then return '' end

local time = call('TIME')
local now = time[1] + time[2] / 1e6
local untaken = tonumber(due) >= UNTAKEN
local deadline = string.format('%.3f', math.max(now + seconds, untaken and 0 or due))
call('ZADD', deadlines, deadline, id)
call('HSET', record, 'deadline', deadline)
local life = math.ceil((seconds + (tonumber(rules[2]) or 0)) * 1000)
for _, key in ipairs({record, xid}) do
  local left = call('PTTL', key)
  if (untaken and left == -1) or (left >= 0 and left < life) then call('PEXPIRE', key, string.format('%.0f', life)) end
end
redis.pcall('HINCRBY', touched, 'count', 1)
report('touched', id, known[3] or '', known[4] or '', known[5] or '', known[6] or '',
  now - (tonumber(known[2] or known[1]) or now))
write_events(string.format('%d%03d', time[1], time[2] / 1000), tonumber(rules[3]) or 0)
return deadline
