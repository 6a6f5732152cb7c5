-- Renew the lease of a task, and keep how far its worker is.
--
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- WITH tasks: now stamp read_task write_task lease_of refused
-- KEYS touched    hash    metric: heartbeats
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV id         of the task
-- ARGV attempt    the one that the worker was given
-- ARGV span       how long the lease lasts (s); empty: as long as before
-- ARGV progress   what its worker says, sealed; empty for nothing new
-- Returns the end of the lease (s since the epoch) and 1 if the task is to be given up; or 0 if the worker does not have it
-- any more. Run twice: the same again.
local call = redis.call
local wrong = refused()
if wrong then return wrong end
local task = read_task(id)
if not task or task.state ~= 'held' or task.attempt ~= tonumber(attempt) or task.ends <= now
  or (task.lease <= now and lease_of(task) <= now) then return 0 end
if span ~= '' then task.span = tonumber(span) end
task.lease = math.min(now + task.span, task.close or math.huge)
call('ZADD', held, task.lease, id)
call('ZADD', deadlines, math.min(task.lease, task.ends), id .. ' ' .. queue)
if progress ~= '' then call('HSET', values, id .. ':progress', progress) end
write_task(id, task)
tally(touched, 'count')
report('touched', id, task.xid or id, queue, service, task.attempt, now - task.taken)
write_events(stamp, tonumber(history))
write_tallies()
return {string.format('%.3f', task.lease), task.cancelled and 1 or 0}
