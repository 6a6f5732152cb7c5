-- Keep the tasks of one queue of hqueue. A task is a record of JSON in `tasks`; what is sealed lies in `values`. It is in
-- one place: `ready` (waiting), `later` (delayed), `behind` (blocked by an older task with its key), `held`, or ended.
--
-- USES report tally
-- GIVES now stamp read_task write_task place_task leave_task end_task limit_of lease_of is_overdue wake refused
-- KEYS ready      zset    ids of tasks that a worker may fetch, by index
-- KEYS held       zset    ids of tasks that workers have, by the end of their lease (s since the epoch)
-- KEYS later      zset    ids of tasks that wait for their time, by that time
-- KEYS behind     zset    tasks that wait for an older one with their key: digest, index and id, all with the score 0
-- KEYS busy       hash    by the digest of a key, the id of the task that those behind it wait for
-- KEYS workers    hash    by worker, the ids of the tasks that it has, oldest first, with spaces between
-- KEYS tasks      hash    records by id
-- KEYS values     hash    by id the value; `<id>:more`, `:result`, `:error` and `:progress`
-- KEYS order      zset    ids of all tasks that are kept, by index
-- KEYS named      hash    ids by the name that a client gave its task
-- KEYS deadlines  zset    of all queues: tasks under way (id, queue) by what ends their state: lease, ttl, time to start
-- KEYS delayed    zset    of all queues: tasks that wait for their time, by that time
-- KEYS kept       zset    of all queues: tasks that have ended, by when they are forgotten
-- KEYS outbox     zset    of all queues: tasks (id, queue) whose outcome is to be delivered, by the time of the next attempt
-- KEYS served     hash    `seen`, when requests were served last; `began` and `ended`, the last time in which none were
-- KEYS done       hash    metric: tasks that ended with a result
-- KEYS dead       hash    metric: tasks that ended without one, by reason
-- KEYS expired    hash    metric: tasks whose ttl passed
-- ARGV queue      owner and service, as the members of the sets of all queues name them
-- ARGV service    the id of this instance
-- ARGV away       longest time between two of `seen` while requests are served (s)
-- ARGV grace      how long leases last on once requests are served again (s)
-- ARGV keep       how long a task is kept once it has ended (s)
-- ARGV news       channel for those who wait: `ready NUMBER QUEUE`, `ended ID QUEUE` and `deliver NUMBER`
local time = redis.call('TIME')
-- In whole milliseconds: records keep four decimals, scores all, and both must agree on what is over.
local now = math.floor(time[1] * 1000 + time[2] / 1000) / 1000
local stamp = string.format('%d%03d', time[1], time[2] / 1000)
local awake, outgoing = 0, 0

-- Return the error for a key of the wrong type, or nil. `used` are the keys that the script uses, if not all. Metrics are
-- not checked: `tally` passes over those that it cannot count in.
local function refused(used)
  used = used or {zset = {ready, held, later, behind, order, deadlines, delayed, kept, outbox},
    hash = {busy, workers, tasks, values, named}}
  for expected, keys in pairs(used) do
    for _, key in ipairs(keys) do
      local found = redis.call('TYPE', key).ok
      if found ~= expected and found ~= 'none' then
        return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. found .. ', expected a ' .. expected)
      end
    end
  end
end

local function member_of(id) return id .. ' ' .. queue end

local NUMBERS = {'index', 'added', 'attempt', 'used', 'attempts', 'ends'}
local MORE_NUMBERS = {'due', 'startBy', 'round', 'ended', 'lease', 'close', 'span', 'taken', 'tries'}
local TEXTS = {'state', 'key', 'name', 'xid', 'worker', 'reason'}
local function is_number(value) return type(value) == 'number' and value - value == 0 end

-- Return true if a record has what scripts calculate with: somebody may have changed it.
local function is_sound(task)
  if type(task) ~= 'table' or not task.state or type(task.nonRetryable or {}) ~= 'table' then return false end
  for _, name in ipairs(NUMBERS) do
    if not is_number(task[name]) then return false end
  end
  for _, name in ipairs(MORE_NUMBERS) do
    if task[name] ~= nil and not is_number(task[name]) then return false end
  end
  for _, name in ipairs(TEXTS) do
    if task[name] ~= nil and type(task[name]) ~= 'string' then return false end
  end
  local back_off, state = task.backoff, task.state
  return type(back_off) == 'table' and is_number(back_off.initial) and is_number(back_off.factor) and is_number(back_off.cap)
    and (state ~= 'held' or task.lease and task.span and task.taken and task.worker) and (state ~= 'delayed' or task.due)
    and (state ~= 'blocked' or task.key)
end

-- Return the record of a task; nil if there is none, or none that can be read.
local function read_task(id)
  local found = redis.call('HGET', tasks, id)
  local sound, task = pcall(cjson.decode, found)
  return sound and is_sound(task) and task or nil
end

local function write_task(id, task) redis.call('HSET', tasks, id, cjson.encode(task)) end

-- Return whether something of this queue is due that a sweep has not seen yet.
local function is_overdue()
  return redis.call('ZCOUNT', held, '-inf', now) + redis.call('ZCOUNT', later, '-inf', now) > 0
end

-- Return when the lease of a task is over. One that was given before a time in which no requests were served, and has not
-- ended before that, too, lasts on for a while after it: its worker could neither acknowledge nor renew it.
local function lease_of(task)
  local known = redis.pcall('HMGET', served, 'seen', 'began', 'ended')
  local seen, began, ended = tonumber(known[1] or ''), tonumber(known[2] or ''), tonumber(known[3] or '')
  if seen and now - seen > tonumber(away) then began, ended = seen, now end
  local since = task.lease == task.close and task.taken or task.lease - task.span
  if not (began and ended) or task.lease <= began or since >= ended then return task.lease end
  return math.max(task.lease, ended + grace)
end

-- Return when a task that no worker has is over.
local function limit_of(task)
  return task.attempt == 0 and task.startBy and math.min(task.startBy, task.ends) or task.ends
end

-- Let a task wait: for an older one with its key, for its time, or for a worker.
local function place_task(id, task)
  local holder = task.key and redis.call('HGET', busy, task.key)
  if holder and holder ~= id and redis.call('HEXISTS', tasks, holder) == 1 then
    task.state = 'blocked'
    redis.call('ZADD', behind, 0, string.format('%s:%016.0f:%s', task.key, task.index, id))
    redis.call('ZADD', deadlines, limit_of(task), member_of(id))
    return
  end
  if task.key then redis.call('HSET', busy, task.key, id) end
  if task.due and task.due > now then
    task.state = 'delayed'
    redis.call('ZADD', later, task.due, id)
    redis.call('ZADD', delayed, math.min(task.due, limit_of(task)), member_of(id))
    return
  end
  task.state, task.due = 'waiting', nil
  redis.call('ZADD', ready, task.index, id)
  redis.call('ZADD', deadlines, limit_of(task), member_of(id))
  awake = awake + 1
end

local function forget_worker(id, worker)
  local left = {}
  for each in string.gmatch(redis.call('HGET', workers, worker) or '', '%d+') do
    if each ~= id then left[#left + 1] = each end
  end
  if #left == 0 then redis.call('HDEL', workers, worker)
  else redis.call('HSET', workers, worker, table.concat(left, ' ')) end
end

-- Take a task out of the place where its state says that it is.
local function leave_task(id, task)
  if task.state == 'waiting' then redis.call('ZREM', ready, id) end
  if task.state == 'blocked' then
    redis.call('ZREM', behind, string.format('%s:%016.0f:%s', task.key, task.index, id))
  end
  if task.state == 'delayed' then
    redis.call('ZREM', later, id)
    redis.call('ZREM', delayed, member_of(id))
  else
    redis.call('ZREM', deadlines, member_of(id))
  end
  if task.state == 'held' then
    redis.call('ZREM', held, id)
    forget_worker(id, task.worker)
    task.worker, task.lease, task.close, task.span = nil, nil, nil, nil
  end
end

-- Let the next task with the key of `task` go on; one whose record somebody has deleted is passed over.
local function release_key(id, task)
  if not task.key or redis.call('HGET', busy, task.key) ~= id then return end
  redis.call('HDEL', busy, task.key)
  local follower
  while not follower do
    local found = redis.call('ZRANGEBYLEX', behind, '[' .. task.key .. ':', '(' .. task.key .. ';', 'LIMIT', 0, 1)[1]
    if not found then return end
    local after = string.match(found, '(%d+)$')
    follower = read_task(after)
    redis.call('ZREM', behind, found)
    redis.call('ZREM', deadlines, member_of(after))
    if follower then
      place_task(after, follower)
      write_task(after, follower)
    end
  end
end

-- End a task as `done`, `dead` (with a reason) or `expired`.
local function end_task(id, task, state, reason)
  leave_task(id, task)
  task.state, task.reason, task.ended, task.due = state, reason, now, nil
  release_key(id, task)
  if state == 'expired' then redis.call('HDEL', values, id, id .. ':progress') end
  if task.replyTo or task.hook then
    task.delivery, outgoing = 'waiting', outgoing + 1
    redis.call('ZADD', outbox, now, member_of(id))
  end
  write_task(id, task)
  redis.call('ZADD', kept, now + keep, member_of(id))
  redis.call('PUBLISH', news, 'ended ' .. id .. ' ' .. queue)
  tally(({done = done, dead = dead, expired = expired})[state], 'count')
  if reason and state == 'dead' then tally(dead, reason) end
  report(state, id, task.xid or id, queue, service, task.attempt, now - (task.taken or task.added))
end

-- Say that tasks wait for a worker, or outcomes for their delivery.
local function wake()
  if awake > 0 then redis.call('PUBLISH', news, 'ready ' .. awake .. ' ' .. queue) end
  if outgoing > 0 then redis.call('PUBLISH', news, 'deliver ' .. outgoing) end
end
