-- Give a worker the tasks that it has, or else the oldest that wait; begin or renew their leases. End those leases if it has
-- died since it fetched them: if it is another process, or one that says no process asks again for the second time.
--
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- WITH tasks: now stamp read_task write_task is_overdue refused
-- KEYS delivered  hash    metric: tasks given to workers
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV worker     who asks
-- ARGV process    a word that each process of workers makes up; empty if it says none
-- ARGV span       how long the lease lasts (s)
-- ARGV most       maximum number of tasks to return
-- ARGV room       maximum number of bytes of values and progress to return, if it is not one task
-- Returns for each task id, index, attempt, end of the lease (s since the epoch), value and progress. If something is due,
-- returns an id instead, which may be due: sweep it first. Run twice: the same tasks again.
local call = redis.call
local wrong = refused({zset = {ready, held, later, deadlines}, hash = {workers, tasks, values}})
if wrong then return wrong end
if is_overdue() then return '0' end

-- Return whether the worker has died since it got `task`; note that it asks again. An instance of a former version, which
-- may have given this attempt, notes nothing.
local function has_died(task)
  local asked = type(task.asked) == 'table' and task.asked.attempt == task.attempt and task.asked
  if asked and asked.process ~= process then return true end
  task.asked = {attempt = task.attempt, process = process, times = (asked and tonumber(asked.times) or 0) + 1,
    together = asked and asked.together}
  return process == '' and task.asked.times > 1
end

local ids, again, lost, mine = {}, true, 0, {}
for id in string.gmatch(call('HGET', workers, worker) or '', '%d+') do
  local task = read_task(id)
  if task and task.state == 'held' and task.worker == worker and #ids < tonumber(most) then
    ids[#ids + 1] = id
    mine[id] = task
    if has_died(task) then
      task.lease, task.span, lost = now, 0, lost + 1
      call('ZADD', held, now, id)
      call('ZADD', deadlines, now, id .. ' ' .. queue)
      write_task(id, task)
    end
  end
end
if lost > 0 then return '0' end
if #ids == 0 then ids, again = call('ZRANGE', ready, 0, most - 1), false end
local found, size, together = {}, 0, math.huge
for place, id in ipairs(ids) do
  if #ids > 1 then size = size + call('HSTRLEN', values, id) + call('HSTRLEN', values, id .. ':progress') end
  if place > 1 and size > tonumber(room) then break end
  local task = mine[id] or read_task(id)
  if not task or task.ends <= now or (task.attempt == 0 and task.startBy and task.startBy <= now) then return id end
  if not again then  -- suspects come with suspects, and no more than may be in one hand
    if place == 1 then together = task.suspect or together end
    if place > together or (task.suspect or math.huge) ~= together then break end
  end
  found[place] = task
end
local given = {}
for place, task in ipairs(found) do
  local id = ids[place]
  if not again then
    call('ZREM', ready, id)
    task.state, task.worker, task.attempt, task.taken = 'held', worker, task.attempt + 1, now
    task.close = task.attemptTimeout and now + task.attemptTimeout
    task.asked = {attempt = task.attempt, process = process, times = 0, together = #found}
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
