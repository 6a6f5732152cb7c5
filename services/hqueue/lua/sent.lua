-- Note how an attempt to deliver an outcome ended: for good, or until the next one.
--
-- WITH tallies: tally write_tallies
-- KEYS tasks      hash    records by id
-- KEYS outbox     zset    of all queues: tasks (id, queue) whose outcome is to be delivered, by the time of the next attempt
-- KEYS outcomes   hash    metric: outcomes that were delivered, or not
-- ARGV id         of the task
-- ARGV queue      owner and service
-- ARGV round      how often the task had been revived when the outcome was read
-- ARGV outcome    `sent`, `failed`, `deferred` (was not tried), `refused` (never try again) or `passed` (this instance may not
--                 post it, or cannot open it: another one may)
-- ARGV wait       how long until the next attempt (s)
-- ARGV patience   how long after the end of the task attempts are made (s)
-- ARGV news       channel on which other instances hear what was passed
-- Returns what has become of the delivery: `done`, `waiting`, `failed`; `over` if the task has no such outcome any more.
-- Run twice: an attempt is counted twice.
local call = redis.call
local member, time = id .. ' ' .. queue, call('TIME')
local now = time[1] + time[2] / 1e6
local record = call('HGET', tasks, id)
local task = record and cjson.decode(record)
if not task then call('ZREM', outbox, member) end
if not task or not task.ended or (task.round or 0) ~= tonumber(round) or task.delivery ~= 'waiting' then return 'over' end
if outcome == 'failed' or outcome == 'passed' then task.tries = (task.tries or 0) + 1 end
if outcome == 'failed' then tally(outcomes, 'failed') end
if outcome == 'sent' then
  task.posted = true
  if not task.replyTo or task.replied then task.delivery = 'done' end
  tally(outcomes, 'sent')
elseif outcome == 'refused' or now + wait > task.ended + patience then
  task.delivery = 'failed'
  tally(outcomes, 'undelivered')
end
if task.delivery == 'waiting' then call('ZADD', outbox, now + wait, member) else call('ZREM', outbox, member) end
call('HSET', tasks, id, cjson.encode(task))
if outcome == 'passed' then call('PUBLISH', news, 'deliver 1') end
write_tallies()
return task.delivery
