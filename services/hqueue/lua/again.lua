-- Let tasks that have ended wait again, with as many attempts as at first.
--
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- WITH tasks: now stamp read_task write_task place_task wake refused
-- KEYS revived    hash    metric: tasks that wait again
-- KEYS registered hash    metric: tasks that were added, or wait again
-- KEYS taken      hash    metric: tasks that were added
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV life       seconds until they expire
-- ARGV dead_only  1 if only dead ones may
-- ARGV ids...     of the tasks
-- Returns how many wait again. Run twice: the second time they wait already.
local call = redis.call
local wrong = refused()
if wrong then return wrong end
local count = 0
for _, id in ipairs(ids) do
  local task = read_task(id)
  local place = id .. ' ' .. queue
  if task and (task.state == 'dead' or (task.state == 'done' and dead_only ~= '1')) and call('HEXISTS', values, id) == 1 then
    task.used, task.round, task.ends, task.startBy = task.attempt, (task.round or 0) + 1, now + life, nil
    task.ended, task.reason, task.cancelled, task.due = nil, nil, nil, nil
    task.delivery, task.replied, task.posted, task.tries = nil, nil, nil, nil
    call('HDEL', values, id .. ':result', id .. ':error', id .. ':progress')
    call('ZREM', kept, place)
    call('ZREM', outbox, place)
    place_task(id, task)
    write_task(id, task)
    report('registered', id, task.xid or id, queue, service, 0)
    count = count + 1
  end
end
tally(revived, 'count', count)
tally(registered, 'count', count)
tally(taken, 'count', count)
wake()
write_events(stamp, tonumber(history))
write_tallies()
return count
