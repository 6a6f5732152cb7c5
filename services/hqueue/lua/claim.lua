-- Take outcomes of all queues whose delivery is due, for a time in which no other instance takes them; remove members that
-- name no task.
--
-- WITH members: is_task
-- KEYS outbox     zset    of all queues: tasks (id, queue) whose outcome is to be delivered, by the time of the next attempt
-- ARGV most       most tasks
-- ARGV span       how long they are ours (s)
-- Returns the seconds until the next is due, as text (empty if none will be), and ids and queues. Run twice: others.
local call = redis.call
local time = call('TIME')
local now = time[1] + time[2] / 1e6
local found = {}
for _, member in ipairs(call('ZRANGEBYSCORE', outbox, '-inf', now, 'LIMIT', 0, most)) do
  if is_task(member) then
    call('ZADD', outbox, now + span, member)
    found[#found + 1] = member
  else
    call('ZREM', outbox, member)
  end
end
local after = call('ZRANGE', outbox, 0, 0, 'WITHSCORES')[2]
return {after and string.format('%.3f', math.max(0, after - now)) or '', found}
