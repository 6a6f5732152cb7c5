-- Push messages that other sites have sent, each once, and remember their ids. All or none.
--
-- WITH lease
-- WITH types: wrong_type
-- WITH tallies: tally write_tallies
-- KEYS out          list  where they go (newest at the head)
-- KEYS received     zset  ids of messages that were pushed lately, by their number
-- KEYS taken        hash  metric: messages taken
-- KEYS settled      hash  metric: messages pushed or left in the pending list no more
-- KEYS delivered    hash  metric: messages pushed
-- KEYS doubled      hash  metric: messages that came again
-- KEYS lease?       hash  owner token expires of the one active replica
-- ARGV token        the lease's fencing token that the caller holds
-- ARGV most         maximum number of ids to remember
-- ARGV messages...  two each: its id, and its data
-- Returns how many were pushed. Run twice: the second run pushes none.
local call = redis.call
local refused = wrong_type({list = {out}, zset = {received}, hash = {taken, settled, delivered, doubled}})
if refused then return refused end

local last = tonumber(call('ZRANGE', received, -1, -1, 'WITHSCORES')[2] or 0)
local pushed = 0
for place = 1, #messages, 2 do
  if call('ZADD', received, 'NX', last + pushed + 1, messages[place]) == 1 then
    call('LPUSH', out, messages[place + 1])
    pushed = pushed + 1
  else
    tally(doubled, 'count')
    tally(doubled, out)
  end
end
call('ZREMRANGEBYRANK', received, 0, -most - 1)
for _, metric in ipairs({taken, delivered}) do
  tally(metric, 'count', pushed)
  tally(metric, out, pushed)
end
tally(settled, 'count', pushed)
write_tallies()
return pushed
