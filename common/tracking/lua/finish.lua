-- Settle what workers reported of messages: the oldest entries of `pending` are such reports, or answers to pass on.
--
-- FLAGS allow-oom
-- WITH lease
-- WITH types: length problem
-- WITH numbers: finite
-- WITH chain: unlink
-- WITH letters: push_letter
-- WITH tallies: tally write_tallies
-- WITH finished: drop_finished
-- WITH events: report write_events
-- WITH answers: send publish_first
-- WITH moving: move
-- WITH held: note enter keep
-- KEYS pending     list    entries that this instance has taken and not settled (oldest at the tail)
-- KEYS source      list    where they came from
-- KEYS ids         list    ids in flight, newest at the head
-- KEYS deadlines   zset    ids in flight by deadline (s since the epoch)
-- KEYS delayed     zset    ids to deliver later, by the time of delivery
-- KEYS letters     list    dead letters, JSON
-- KEYS done        hash    metric: time from delivery to the end, of messages that were finished in time
-- KEYS late        hash    metric: finished after the time-out
-- KEYS unknown     hash    metric: finished already, or never known
-- KEYS failed      hash    metric: attempts that a worker gave up
-- KEYS dead        hash    metric: dead letters, by reason
-- KEYS settled?    hash    metric: entries that left the pending list; given with `taken`
-- KEYS lease?      hash    owner token expires of the one active replica
-- KEYS subjects... hash    three an entry: the message's record, that of its xid, the list for the answer (or `pending`)
-- ARGV token       the lease's fencing token that the caller holds
-- ARGV held        how many entries the caller expects in `pending`; the script does nothing if there are others
-- ARGV batch       maximum number of entries to take
-- ARGV bytes       take no more once they have this many bytes together
-- ARGV life        how long a list for answers lives after the last one (s), if an answer has created it
-- ARGV lasting     the lists for answers that the settings name, which never get a TTL: JSON, an array
-- ARGV accept      1 if `done` or an answer of an attempt ends the message though a younger attempt is under way
-- ARGV history     maximum number of events to keep; 0 for none
-- ARGV due         channel to publish on when something falls due before all else
-- ARGV entries...  four an entry: id; `done`, `ambiguous` (done, by a number that is the id of another message, too),
--                  `answer`, `recalled` (an answer, if that message is the oldest of its xid and its request names the
--                  list in words), `refused` (an answer that no list may get, and why, in words), `failed`, `final`
--                  (failed, and no more attempts), `touched` (done already), `late` (of an attempt that is over),
--                  `unknown`, or `badDone` and `badAnswer` for a dead letter; the attempt it is about, or empty, and if its
--                  worker measured its work, `/` and the seconds; words
-- Returns false if `pending` holds others; the places of entries whose message was not the one that the caller meant,
-- which are in `pending` again; and the entries taken. Run twice: nothing is done, since `pending` holds others.
local call, pcall = redis.call, redis.pcall
local here = length('LLEN', pending)
for _, counter in pairs({holds, taken}) do length('HLEN', counter) end
if problem then return problem end
note(pending, here)

local waiting = length('LLEN', source)
length('XLEN', events) length('HLEN', events_written) length('ZCARD', events_marks)
local in_flight, held_back = length('ZCARD', deadlines), length('ZCARD', delayed)
length('LLEN', ids) length('LLEN', letters)
length('ZCARD', answers) length('HLEN', answers_more) length('HLEN', answers_sent)
for _, metric in ipairs({done, late, unknown, failed, dead, settled}) do length('HLEN', metric) end
if problem then return problem end
if here ~= tonumber(held) then return false end

local time = call('TIME')
local now, at = time[1] + time[2] / 1e6, string.format('%d%03d', time[1], time[2] / 1000)
if tonumber(history) == 0 then report = function() end end
local again, urgent = {}, false
-- Xids whose oldest message an entry meant and did not end: the messages of later entries must be identified again.
local stays = {}
local spent = {count = 0, sum = 0, max = -1, histo = {}}

local function bury(message, reason, words)
  push_letter({message = message, reason = reason, error = words, source = source, attempts = 0, at = tonumber(at)})
  tally(dead, 'count')
  tally(dead, reason)
end

local function is_oldest(key, id, answer)
  local chain = pcall('HMGET', key, 'id', 'replyTo:' .. id)
  return chain[1] == id and (chain[2] or '') == answer
end

local function observe(seconds, budget)
  spent.count, spent.sum, spent.max = spent.count + 1, spent.sum + seconds, math.max(spent.max, seconds)
  local bucket = 'histo' .. math.min(math.floor(seconds * 10 / budget + 1e-9) * 10, 100)
  spent.histo[bucket] = (spent.histo[bucket] or 0) + 1
end

-- Return what the record says, nil if it is none. A number that somebody has made another word counts as missing.
local function read(record)
  local found = pcall('HMGET', record, 'xid', 'timestamp', 'deadline', 'delivered', 'attempt', 'queue', 'service', 'state')
  if found.err or not found[1] then return end
  local begun = finite(found[2]) or now
  return {xid = found[1], timestamp = begun, deadline = finite(found[3]) or begun, delivered = finite(found[4]),
    attempt = finite(found[5]), queue = found[6] or '', service = found[7] or '', ended = found[8]}
end

-- Return true if the report is about an attempt before the current one, of a worker that was given up.
local function is_stale(attempt, known)
  local current = known.attempt
  return current and (tonumber(attempt) or current) < current
end

-- Return the attempt that an entry is about, and the details of its event: how long its worker worked.
local function measured(attempt)
  local slash = string.find(attempt, '/', 1, true)
  if not slash then return attempt end
  return string.sub(attempt, 1, slash - 1), '{"work": ' .. string.sub(attempt, slash + 1) .. '}'
end

-- End a message that was delivered; return false if this entry must not end it.
local function finish(record, xid_key, id, attempt, details, known)
  local current = known.attempt
  local overdue = call('ZREM', deadlines, id) == 0
  if not overdue then in_flight = in_flight - 1
  elseif current == 0 or call('ZREM', delayed, id) == 0 then return false
  else held_back = held_back - 1 end
  local stale = is_stale(attempt, known)
  overdue = overdue or stale
  local begun = not stale and known.delivered or known.timestamp
  local seconds = math.max(now - begun, 0)
  unlink(xid_key, id)
  call('DEL', record)
  if overdue then
    tally(late, 'count')
    tally(late, 'completed')
  else
    observe(seconds, math.max(known.deadline - begun, 0.001))
  end
  report(overdue and 'late' or 'done', id, known.xid, known.queue, known.service,
    stale and string.format('%d', attempt) or current or '', seconds, nil, details)
  return true
end

-- End an attempt that a worker gave up; the monitor decides what comes next. Return false if it is not in flight.
local function fail(record, id, final, words, details, known)
  if not call('ZSCORE', deadlines, id) then return false end
  call('HSET', record, 'error', words)
  if final then call('HSET', record, 'final', 1) end
  call('ZADD', deadlines, string.format('%.6f', now), id)
  urgent = true
  tally(failed, 'count')
  report('failed', id, known.xid, known.queue, known.service, known.attempt or '', now - (known.delivered or known.timestamp),
    nil, details)
  return true
end

local function pass_on(message, answer, refusal)
  if refusal then
    tally(answers_sent, 'refused')
  elseif answer == pending then
    refusal = 'nobody is waiting: the request had no replyTo'
  else
    local refused = send(answer, message, now, tonumber(life), lasting)
    refusal = refused and answer .. ': ' .. refused
  end
  if refusal then bury(message, 'badAnswer', refusal) end
end

local count = #entries / 4
local said = count > 0 and call('RPOP', pending, count) or {}
for place = 1, count do
  local record, xid_key, answer = subjects[3 * place - 2], subjects[3 * place - 1], subjects[3 * place]
  local id, verdict, reported, words = unpack(entries, 4 * place - 3, 4 * place)
  local attempt, details = measured(reported)
  if verdict == 'badDone' or verdict == 'badAnswer' then
    bury(said[place], verdict, words)
  elseif verdict == 'late' then
    tally(late, 'count')
  elseif stays[xid_key] and verdict ~= 'touched' then
    again[#again + 1] = place
  elseif verdict == 'unknown' then
    tally(unknown, 'count')
  elseif verdict == 'recalled' and not is_oldest(xid_key, id, words) then
    again[#again + 1] = place
  elseif verdict ~= 'touched' then
    local known = read(record)
    if not known then
      unlink(xid_key, id)
      again[#again + 1] = place
    else
      if verdict == 'ambiguous' then tally(done, 'ambiguous') end
      local fails = verdict == 'failed' or verdict == 'final'
      if known.ended then
        tally(late, 'count')
      elseif is_stale(attempt, known) and (fails or accept ~= '1') then
        tally(late, 'count')
        stays[xid_key] = true
      elseif fails and fail(record, id, verdict == 'final', words, details, known)
          or not fails and finish(record, xid_key, id, attempt, details, known) then
        if verdict == 'answer' or verdict == 'recalled' then pass_on(said[place], answer)
        elseif verdict == 'refused' then pass_on(said[place], answer, words) end
      else
        tally(unknown, 'count')
      end
    end
  end
end
for place = #again, 1, -1 do call('RPUSH', pending, said[again[place]]) end
if urgent then call('PUBLISH', due, string.format('%.6f', now)) end

-- Remove finished ids from the list once all are finished, or once they are its oldest.
if count > 0 and in_flight + held_back == 0 then call('UNLINK', ids) end
if in_flight + held_back > 0 then drop_finished(2 * count) end
write_events(at, tonumber(history))
publish_first(due)
write_tallies()
if spent.count > 0 then
  pcall('HINCRBY', done, 'count', spent.count)
  local before = call('HMGET', done, 'sum', 'max')
  local sum, most = tonumber(before[1] or 0), math.max(tonumber(before[2]) or -1, spent.max)
  if sum then call('HSET', done, 'sum', string.format('%.6f', sum + spent.sum), 'max', string.format('%.6f', most)) end
  for bucket, number in pairs(spent.histo) do pcall('HINCRBY', done, bucket, number) end
end

local found = {}
move(source, pending, 'RIGHT', 'LEFT', math.min(batch, waiting), tonumber(bytes), found)
enter(#found)
if settled then pcall('HINCRBY', settled, 'count', count - #again) end
keep(pending, here, here - count + #again + #found)
return {again, found}
