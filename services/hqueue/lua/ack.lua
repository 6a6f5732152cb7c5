-- End attempts, each for itself: with a result the task is done; with an error it waits for another attempt, or is dead;
-- one that its worker has not begun waits again, and the attempt does not count. A task that cannot be shown to its worker
-- ends as with an error.
--
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- WITH tasks: now stamp read_task write_task place_task leave_task end_task lease_of wake refused
-- KEYS failed     hash    metric: attempts that their workers gave up
-- KEYS retry      hash    metric: attempts after the first
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV acks...    seven for each attempt:
--                 worker   whose last task is meant; empty: see `id`
--                 id       of the task; with `worker` what it was expected to be
--                 attempt  the one that the worker was given
--                 outcome  `result`, `error`, `release` or `unopenable`
--                 content  the result or error, sealed; empty for none
--                 kind     the type of the error
--                 again    `0`: no other attempt; else how long to wait for it (s), or empty for the back-off of the task
-- Returns the state of each task; or 0 if the worker does not have it any more. Run twice: the second time it has not.
local call = redis.call
local wrong = refused()
if wrong then return wrong end

-- Return how long to wait before the next attempt (s); nil if there is none.
local function wait_of(task, kind, again)
  local tried = task.attempt - task.used
  if again == '0' or task.cancelled or (task.attempts > 0 and tried >= task.attempts) then return end
  for _, final in ipairs(task.nonRetryable or {}) do
    if final == kind then return end
  end
  if again ~= '' then return tonumber(string.sub(again, 2)) end
  return math.min(task.backoff.initial * task.backoff.factor ^ (tried - 1), task.backoff.cap)
end

local function wait_again(id, task, wait)
  leave_task(id, task)
  task.due = wait > 0 and now + wait or nil
  place_task(id, task)
  write_task(id, task)
  tally(retry, 'count')
  report('retry', id, task.xid or id, queue, service, task.attempt + 1, now - task.added)
end

local function acknowledge(worker, id, attempt, outcome, content, kind, again)
  if worker ~= '' and string.match(call('HGET', workers, worker) or '', '(%d+)$') ~= id then return 0 end
  local task = read_task(id)
  if not task or task.state ~= 'held' or task.ends <= now or (task.lease <= now and lease_of(task) <= now) then return 0 end
  if worker == '' and task.attempt ~= tonumber(attempt) then return 0 end
  local name = outcome == 'unopenable' and 'error' or outcome
  if content ~= '' then call('HSET', values, id .. ':' .. name, content) end
  if outcome == 'result' then
    if task.attempt > 1 then call('HDEL', values, id .. ':error') end
    end_task(id, task, 'done')
    return task.state
  end
  if outcome == 'release' and not task.cancelled then
    task.used = task.used + 1
    wait_again(id, task, 0)
    return task.state
  end
  task.suspect = nil
  tally(failed, 'count')
  report('failed', id, task.xid or id, queue, service, task.attempt, now - task.taken)
  local wait = wait_of(task, kind, again)
  if wait then
    wait_again(id, task, wait)
  else
    end_task(id, task, 'dead', task.cancelled and 'cancelled' or outcome == 'error' and 'failed' or outcome)
  end
  return task.state
end

local states = {}
for place = 1, #acks, 7 do states[#states + 1] = acknowledge(unpack(acks, place, place + 6)) end
wake()
write_events(stamp, tonumber(history))
write_tallies()
return states
