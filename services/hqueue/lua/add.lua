-- Add tasks to a queue, each behind all that are there. All or none.
--
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- WITH tasks: now stamp read_task write_task place_task wake refused
-- KEYS registered hash    metric: tasks that were added, or wait again
-- KEYS taken      hash    metric: tasks that were added
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV capacity   maximum number of tasks that the queue keeps
-- ARGV new...     five for each task: id, record (JSON, times in s from now), value, more (empty for none), delay (s)
-- Returns id, index and state of each task, and 1 if it is new; of a name that the queue has, what it has. Returns -1 if
-- there are too many; -2 if a task has one of the ids.
-- Run twice: the ids are taken.
local wrong = refused()
if wrong then return wrong end
local first = redis.call('ZRANGE', order, -1, -1, 'WITHSCORES')[2] or 0
if redis.call('ZCARD', order) + #new / 5 > tonumber(capacity) then return -1 end
for place = 1, #new, 5 do
  if redis.call('HEXISTS', tasks, new[place]) == 1 then return -2 end
end
local added, count = {}, 0
for place = 1, #new, 5 do
  local id, record, value, more, delay = unpack(new, place, place + 4)
  local task = cjson.decode(record)
  local known = task.name and redis.call('HGET', named, task.name)
  local former = known and read_task(known)
  if former then
    added[#added + 1] = {known, former.index, former.state, 0}
  else
    count = count + 1
    task.index, task.added, task.attempt, task.used = first + count, now, 0, 0
    task.ends = now + task.ends
    if task.startBy then task.startBy = now + task.startBy end
    if tonumber(delay) > 0 then task.due = now + delay end
    redis.call('HSET', values, id, value)
    if more ~= '' then redis.call('HSET', values, id .. ':more', more) end
    redis.call('ZADD', order, task.index, id)
    if task.name then redis.call('HSET', named, task.name, id) end
    place_task(id, task)
    write_task(id, task)
    report('registered', id, task.xid or id, queue, service, 0)
    added[#added + 1] = {id, task.index, task.state, 1}
  end
end
tally(registered, 'count', count)
tally(taken, 'count', count)
wake()
write_events(stamp, tonumber(history))
write_tallies()
return added
