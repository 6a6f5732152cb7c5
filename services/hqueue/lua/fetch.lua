-- Give a worker the tasks that it has, or else the oldest that wait; begin or renew their leases.
--
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- WITH tasks: now stamp read_task write_task is_overdue refused
-- KEYS delivered  hash    metric: tasks given to workers
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV worker     who asks
-- ARGV span       how long the lease lasts (s)
-- ARGV most       maximum number of tasks to return
-- ARGV room       maximum number of bytes of values and progress to return, if it is not one task
-- Returns for each task id, index, attempt, end of the lease (s since the epoch), value and progress. If something is due,
-- returns an id instead, which may be due: sweep it first. Run twice: the same tasks again.
local call = redis.call
local wrong = refused({zset = {ready, held, later, deadlines}, hash = {workers, tasks, values}})
if wrong then return wrong end
if is_overdue() then return '0' end
local ids, again = {}, true
for id in string.gmatch(call('HGET', workers, worker) or '', '%d+') do
  if #ids < tonumber(most) and call('HEXISTS', tasks, id) == 1 then ids[#ids + 1] = id end
end
if #ids == 0 then ids, again = call('ZRANGE', ready, 0, most - 1), false end
local found, size = {}, 0
for place, id in ipairs(ids) do
  if #ids > 1 then size = size + call('HSTRLEN', values, id) + call('HSTRLEN', values, id .. ':progress') end
  if place > 1 and size > tonumber(room) then break end
  local task = read_task(id)
  if not task or task.ends <= now or (task.attempt == 0 and task.startBy and task.startBy <= now) then return id end
  found[place] = task
end
local given = {}
for place, task in ipairs(found) do
  local id = ids[place]
  if not again then
    call('ZREM', ready, id)
    task.state, task.worker, task.attempt, task.taken = 'held', worker, task.attempt + 1, now
    task.close = task.attemptTimeout and now + task.attemptTimeout
    tally(delivered, 'count')
    report('delivered', id, task.xid or id, queue, service, task.attempt, now - task.added)
  end
  task.span = tonumber(span)
  task.lease = math.min(now + span, task.close or math.huge)
  call('ZADD', held, task.lease, id)
  call('ZADD', deadlines, math.min(task.lease, task.ends), id .. ' ' .. queue)
  write_task(id, task)
  local value, progress = unpack(call('HMGET', values, id, id .. ':progress'))
  given[place] = {id, task.index, task.attempt, string.format('%.3f', task.lease), value, progress}
end
if #ids > 0 and not again then call('HSET', workers, worker, table.concat(ids, ' ', 1, #found)) end
write_events(stamp, tonumber(history))
write_tallies()
return given
