-- Push the outcome of a task to the list of who asked for it, once.
--
-- WITH tallies: tally write_tallies
-- KEYS tasks      hash    records by id
-- KEYS outbox     zset    of all queues: tasks (id, queue) whose outcome is to be delivered, by the time of the next attempt
-- KEYS replies    list    outcomes, the newest at the head
-- KEYS outcomes   hash    metric: outcomes that were delivered, or not
-- ARGV id         of the task
-- ARGV queue      owner and service
-- ARGV round      how often the task had been revived when the outcome was read
-- ARGV message    what is pushed
-- ARGV capacity   maximum number of messages of the list
-- Returns the word `replied`, `full`, or `over` if the task has no such outcome any more. Run twice: it is pushed once.
local call = redis.call
local found = call('TYPE', replies).ok
if found ~= 'list' and found ~= 'none' then
  return redis.error_reply('WRONGTYPE ' .. replies .. ' holds a ' .. found .. ', expected a list')
end
local record = call('HGET', tasks, id)
local task = record and cjson.decode(record)
if not task or not task.ended or (task.round or 0) ~= tonumber(round) then return 'over' end
if task.replied then return 'replied' end
if call('LLEN', replies) >= tonumber(capacity) then return 'full' end
call('LPUSH', replies, message)
task.replied = true
if not task.hook or task.posted then
  task.delivery = 'done'
  call('ZREM', outbox, id .. ' ' .. queue)
end
call('HSET', tasks, id, cjson.encode(task))
tally(outcomes, 'replied')
write_tallies()
return 'replied'
