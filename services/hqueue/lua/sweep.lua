-- Act on tasks of one queue that are due: end leases, start what was delayed, end what is too old, forget what has ended.
--
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- WITH tasks: now stamp read_task write_task place_task leave_task end_task limit_of lease_of wake refused
-- KEYS timeout    hash    metric: leases that ended without an acknowledgement
-- KEYS retry      hash    metric: attempts after the first
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV most       maximum number of tasks to act on
-- ARGV due...     ids that may be due, besides those whose leases or delays are over
-- Returns how many were acted on. Run twice: nothing is due.
local call = redis.call
local wrong = refused()
if wrong then return wrong end
local ids, seen, acted = {}, {}, 0
for _, found in ipairs({due, call('ZRANGEBYSCORE', held, '-inf', now, 'LIMIT', 0, most),
  call('ZRANGEBYSCORE', later, '-inf', now, 'LIMIT', 0, most)}) do
  for _, id in ipairs(found) do
    if not seen[id] then
      seen[id] = true
      ids[#ids + 1] = id
    end
  end
end

local function forget(id, task)
  call('HDEL', tasks, id)
  call('HDEL', values, id, id .. ':more', id .. ':result', id .. ':error', id .. ':progress')
  call('ZREM', order, id)
  call('ZREM', kept, id .. ' ' .. queue)
  if task and task.name and call('HGET', named, task.name) == id then call('HDEL', named, task.name) end
end

-- Note that a lease has ended. The attempt does not count if its worker got several tasks with it: half of them may be in one
-- hand next, and then each comes alone.
local function suspect(task)
  local asked = type(task.asked) == 'table' and task.asked.attempt == task.attempt and task.asked or {}
  local many = tonumber(asked.together) or 1
  if many > 1 and not (task.close and task.close <= now) then
    task.used = task.used + 1
    task.suspect = task.suspect and 1 or math.ceil(many / 2)
  else
    task.suspect = 1
  end
end

-- Put a task of which nothing is due where its record says that it is: somebody may have changed the sets.
local function put_right(id, task)
  local place, is_held, is_delayed = id .. ' ' .. queue, task.state == 'held', task.state == 'delayed'
  if not is_held then call('ZREM', held, id) end
  if not is_delayed then
    call('ZREM', later, id)
    call('ZREM', delayed, place)
  end
  if task.ended or is_delayed then call('ZREM', deadlines, place) else call('ZREM', kept, place) end
  if is_held then
    call('ZADD', held, task.lease, id)
    call('ZADD', deadlines, math.min(task.lease, task.ends), place)
  elseif is_delayed then
    call('ZREM', kept, place)
    call('ZADD', later, task.due, id)
    call('ZADD', delayed, math.min(task.due, limit_of(task)), place)
  elseif not task.ended then
    call('ZADD', deadlines, limit_of(task), place)
  end
end

for _, id in ipairs(ids) do
  local task = read_task(id)
  local state = task and task.state
  if not task then
    call('ZREM', ready, id)
    call('ZREM', held, id)
    call('ZREM', later, id)
    call('ZREM', deadlines, id .. ' ' .. queue)
    call('ZREM', delayed, id .. ' ' .. queue)
    if call('HEXISTS', tasks, id) == 1 then
      tally(dead, 'count')
      tally(dead, 'badRecord')
    end
    forget(id)
    acted = acted + 1
  elseif task.ended then
    local until_ = call('ZSCORE', kept, id .. ' ' .. queue)
    local is_over = not until_ or tonumber(until_) <= now
    if is_over and task.delivery == 'waiting' then
      call('ZREM', kept, id .. ' ' .. queue) -- before the other writes: a full server accepts it as the first
      call('ZADD', outbox, 'NX', now, id .. ' ' .. queue)
      call('ZADD', kept, now + keep, id .. ' ' .. queue)
    elseif is_over then
      forget(id, task)
      acted = acted + 1
    else
      put_right(id, task)
    end
  elseif task.ends <= now then
    end_task(id, task, 'expired', 'ttl')
    acted = acted + 1
  elseif state ~= 'held' and task.attempt == 0 and task.startBy and task.startBy <= now then
    report('queueTimeout', id, task.xid or id, queue, service, 0, now - task.added)
    end_task(id, task, 'dead', 'queueTimeout')
    acted = acted + 1
  elseif state == 'held' and task.lease <= now and lease_of(task) > now then
    task.lease = lease_of(task)
    write_task(id, task)
    put_right(id, task)
    acted = acted + 1
  elseif state == 'held' and task.lease <= now then
    tally(timeout, 'count')
    report('timeout', id, task.xid or id, queue, service, task.attempt, now - task.taken)
    suspect(task)
    if task.cancelled then
      end_task(id, task, 'dead', 'cancelled')
    elseif task.attempts > 0 and task.attempt - task.used >= task.attempts then
      end_task(id, task, 'dead', 'timeout')
    else
      leave_task(id, task)
      place_task(id, task)
      write_task(id, task)
      tally(retry, 'count')
      report('retry', id, task.xid or id, queue, service, task.attempt + 1, now - task.added)
    end
    acted = acted + 1
  elseif state == 'delayed' and task.due <= now then
    leave_task(id, task)
    place_task(id, task)
    write_task(id, task)
    acted = acted + 1
  else
    put_right(id, task)
  end
end
wake()
write_events(stamp, tonumber(history))
write_tallies()
return acted
