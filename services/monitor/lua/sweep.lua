-- Act on messages that are due: deliver those that were delayed; of those past their deadline retry or bury each.
--
-- WITH types: wrong_type
-- WITH numbers: finite whole MAX_ID
-- WITH chain: link unlink
-- WITH letters: push_letter
-- WITH tallies: tally write_tallies
-- WITH finished: drop_finished
-- WITH events: report write_events
-- WITH answers: send publish_first
-- WITH retry_budget: may_retry write_budget
-- KEYS deadlines   zset    ids in flight by deadline (s since the epoch)
-- KEYS delayed     zset    ids to deliver later, by the time of delivery
-- KEYS out         list    what workers take from, at the tail
-- KEYS pushed      hash    the number of the last message that was pushed to a list, by the list's name
-- KEYS ids         list    ids in flight, newest at the head
-- KEYS letters     list    dead letters, JSON
-- KEYS delivered   hash    metric: messages pushed to a list for the first time
-- KEYS timeout     hash    metric: time from delivery to the time-out, of attempts that nobody finished in time
-- KEYS retry       hash    metric: messages delivered again
-- KEYS dead        hash    metric: dead letters, by reason
-- KEYS expired     hash    metric: messages whose record was gone when they were due
-- KEYS subjects... hash    four a message: its record, that of its xid, its queue, the list for an answer (or its record)
-- ARGV timespan    how long a worker has (s)
-- ARGV expire      how long a record lives (s)
-- ARGV life        how long a list for answers lives after the last one (s), if an answer has created it
-- ARGV history     maximum number of events to keep; 0 for none
-- ARGV lasting     the lists for answers that the settings name, which never get a TTL: JSON, an array
-- ARGV origin      the list that clients push to, for dead letters
-- ARGV bytes       act on no more once their messages and dead letters have this many bytes together
-- ARGV due         channel to publish on when something falls due before all else
-- ARGV messages... four a message: id; the attempt as its record had it; `deliver`, `retry`, `timeout` or `failed` (both
--                  bury, with that reason), `queueTimeout` (bury what nobody has taken, and remove it from the list),
--                  `expired`; back-off (s). Instead of a delivery after the message's own deadline it is buried, and so
--                  it is, as `retryBudget`, instead of a retry beyond the share
-- Returns how many were looked at, and how many of these were acted on; one that is not due any more, or in another attempt,
-- is left. Run twice: nothing is due.
local call, try, pcall = redis.call, pcall, redis.pcall
local time = call('TIME')
local now, stamp = time[1] + time[2] / 1e6, string.format('%d.%06d', time[1], time[2])
local at, deadline = string.format('%d%03d', time[1], time[2] / 1000), string.format('%.6f', now + timespan)
if tonumber(history) == 0 then report = function() end end

local UNTAKEN, NEAR = 1e12, 1000
local lists = {[ids] = ids, [letters] = letters, [out] = out}
for place = 1, #messages / 4 do
  local action, queue = messages[4 * place - 1], subjects[4 * place - 1]
  if action == 'deliver' or action == 'retry' then lists[queue] = queue end
end
local refused = wrong_type({list = lists, zset = {deadlines, delayed, answers, events_marks}, stream = {events},
  hash = {budget, registered, pushed, delivered, timeout, retry, dead, expired, events_written, answers_more, answers_sent}})
if refused then return refused end

local spent = {count = 0, sum = 0, max = -1}
local earliest, acted, looked, size = math.huge, 0, 0, 0

local function happened(event, id, known, attempt, seconds)
  report(event, id, known.xid or '', known.queue or '', known.service or '', attempt, seconds)
end

-- Schedule messages of one sweep a microsecond apart, so that they stay in their order.
local function schedule(key, id, wait)
  local due_at = now + wait + acted * 1e-6
  call('ZADD', key, string.format('%.6f', due_at), id)
  earliest = math.min(earliest, due_at)
end

local function deliver(record, xid_key, queue, id, known)
  local attempt = known.attempts + 1
  call('LPUSH', queue, known.message)
  call('HSET', record, 'delivered', stamp, 'deadline', deadline, 'attempt', string.format('%.0f', attempt))
  if queue == out then
    local number = string.format('%.0f', (whole(call('HGET', pushed, out), MAX_ID) or 0) + 1)
    call('HSET', pushed, out, number)
    call('HSET', record, 'number', number)
  end
  if attempt > 1 then
    call('HDEL', record, 'taken', 'error', 'final', queue == out and 'taken' or 'number')
    if call('PTTL', record) == -1 then call('EXPIRE', record, expire) end
  end
  schedule(deadlines, id, timespan)
  if attempt == 1 then
    if link(xid_key, id, known.type, known.replyTo) then call('EXPIRE', xid_key, expire) end
    call('EXPIRE', record, expire)
    call('LPUSH', ids, id)
    tally(delivered, 'count')
    tally(delivered, queue)
    happened('delivered', id, known, attempt, now - known.timestamp)
  else
    tally(retry, 'count')
    happened('retry', id, known, attempt, now - known.timestamp)
  end
end

-- Return the id of a request as JSON, as it is in answers: see `penstock/tracking/correlation.py`.
local function id_of(kind, known)
  if kind == 'metaNumber' or string.byte(known.xid) == 34 then return known.xid end
  local sound, found = try(cjson.decode, kind == 'metaLong' and known.message or '')
  return cjson.encode(sound and type(found.meta.id) == 'string' and found.meta.id or known.xid)
end

-- Push a dead letter, send an error to the list for the answer, and leave a tombstone that identifies a late `done`.
local function bury(record, xid_key, answer, id, known, reason)
  local kind = unlink(xid_key, id)
  local first, last = math.floor(known.timestamp * 1000), math.floor((known.delivered or known.timestamp) * 1000)
  size = size + push_letter({message = known.message, reason = reason, error = known.error, queue = known.queue, source = origin,
    attempts = known.attempts, first = first, last = last, at = tonumber(at), id = id, xid = known.xid,
    service = known.service, replyTo = known.replyTo})
  call('DEL', record)
  call('HSET', record, 'state', 'dead', 'reason', reason, 'xid', known.xid, 'attempt', known.attempt, 'timestamp',
    known.timestamp, 'died', stamp)
  call('EXPIRE', record, expire)
  if kind and call('EXISTS', xid_key) == 0 then
    call('HSET', xid_key, 'id', id, 'type', kind, 'dead', 1)
    call('EXPIRE', xid_key, expire)
  end
  if answer ~= record then
    local words = {reason = reason, attempts = known.attempts, words = known.error}
    send(answer, '{"meta":{"id":' .. id_of(kind, known) .. '},"error":' .. cjson.encode(words) .. '}', now, tonumber(life), lasting)
  elseif known.replyTo then
    tally(answers_sent, 'refused')
  end
  tally(dead, 'count')
  tally(dead, reason)
  happened('dead', id, known, known.attempt, now - known.timestamp)
end

local FIELDS = {'xid', 'timestamp', 'delivered', 'attempt', 'queue', 'service', 'message', 'error', 'final', 'replyTo', 'type',
  'until'}
local function read(record)
  local values = pcall('HMGET', record, unpack(FIELDS, 1, #FIELDS))
  local known = {}
  for place, field in ipairs(FIELDS) do known[field] = not values.err and values[place] or nil end
  -- Somebody may have made another word of a number.
  known.attempts = finite(known.attempt) or 0
  if not finite(known.timestamp) then known.timestamp = stamp end
  if not finite(known.delivered) then known.delivered = nil end
  return known
end

-- Return true if the message's own deadline passes within `wait` seconds.
local function is_late(known, wait) return (tonumber(known['until']) or math.huge) <= now + wait end

-- Remove a message that nobody has taken from the list, if it is among the NEAR oldest; return true if it was removed.
local function withdraw(id, known)
  local score = tonumber(call('ZSCORE', deadlines, id) or 0)
  local before = score - UNTAKEN - (tonumber(call('HGET', pushed, out)) or 0) + call('LLEN', out)
  return score >= UNTAKEN and before > 0 and before <= NEAR and known.message
    and call('LREM', out, -1, known.message) == 1
end

for place = 1, #messages / 4 do
  if size >= tonumber(bytes) then break end
  looked = place
  local record, xid_key = subjects[4 * place - 3], subjects[4 * place - 2]
  local queue, answer = subjects[4 * place - 1], subjects[4 * place]
  local id, attempt, action, wait = unpack(messages, 4 * place - 3, 4 * place)
  local known = read(record)
  size = size + #(known.message or '')
  local score = action ~= 'deliver' and call('ZSCORE', deadlines, id)
      or (action == 'deliver' or action == 'expired') and call('ZSCORE', delayed, id)
  local state = (known.attempt or '') .. (known.error and 'e' or '') .. (known.final and 'f' or '')
  local due_now = score and state == attempt and tonumber(score) <= now
  if score and state == attempt and action == 'queueTimeout' then due_now = withdraw(id, known) end
  if due_now then
    acted = acted + 1
    if action == 'retry' and is_late(known, wait) then action = known.error and 'failed' or 'timeout' end
    if action == 'retry' and known.message and not may_retry() then action = 'retryBudget' end
    local again = action == 'retry' and tonumber(wait) == 0 and known.message
    if not again and call('ZREM', deadlines, id) == 0 then call('ZREM', delayed, id) end
    if action == 'expired' or not known.message then
      tally(expired, 'count')
      happened('expired', id, known, '')
      if known.xid then -- somebody has deleted a part of the record
        unlink(xid_key, id)
        call('DEL', record)
      end
    elseif action == 'deliver' and not is_late(known, 0) then
      deliver(record, xid_key, queue, id, known)
    elseif action == 'deliver' then
      local undelivered = known.attempts == 0
      if undelivered then happened('queueTimeout', id, known, known.attempt, now - known.timestamp) end
      bury(record, xid_key, answer, id, known, undelivered and 'queueTimeout' or known.error and 'failed' or 'timeout')
    else
      local seconds = now - (known.delivered or known.timestamp)
      if action == 'queueTimeout' then
        happened('queueTimeout', id, known, known.attempt, seconds)
      elseif not known.error then
        spent.count, spent.sum, spent.max = spent.count + 1, spent.sum + seconds, math.max(spent.max, seconds)
        happened('timeout', id, known, known.attempt, seconds)
      end
      if action ~= 'retry' then
        bury(record, xid_key, answer, id, known, action)
      elseif tonumber(wait) > 0 then
        schedule(delayed, id, wait)
      else
        deliver(record, xid_key, queue, id, known)
      end
    end
  end
end

for _, key in ipairs({deadlines, delayed}) do
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first and math.abs(first - earliest) < 1e-6 then call('PUBLISH', due, first) end
end
-- Remove finished ids from the list once they are its oldest, or once all are finished.
drop_finished(2 * acted)
if acted > 0 and call('ZCARD', deadlines) + call('ZCARD', delayed) == 0 then call('UNLINK', ids) end
write_events(at, tonumber(history))
publish_first(due)
write_budget()
write_tallies()
if spent.count > 0 then
  pcall('HINCRBY', timeout, 'count', spent.count)
  pcall('HINCRBY', timeout, 'histo100', spent.count)
  local sum = call('HGET', timeout, 'sum') or 0
  if tonumber(sum) then call('HSET', timeout, 'sum', string.format('%.6f', sum + spent.sum)) end
  local max = tonumber(call('HGET', timeout, 'max')) or -1
  if spent.max > max then call('HSET', timeout, 'max', string.format('%.6f', spent.max)) end
end
return {looked, acted}
