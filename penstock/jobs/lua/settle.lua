-- End attempts of one group: done, dead, or to be tried again. What another consumer has by now is left alone.
--
-- WITH types: wrong_type
-- WITH streams: named is_after
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- KEYS stream     stream  jobs
-- KEYS wait       zset    entries that are to be tried again, by when (s since the epoch); nobody claims them before
-- KEYS tries      hash    by entry the errors of its attempts (JSON); `<entry>:free` if the last one does not count;
--                         others: see `tend.lua`
-- KEYS dead       stream  jobs whose attempts are used up
-- KEYS done?      stream  completions of all groups; without it they go to `forward`
-- KEYS forward    stream  completions that are to be published on another server
-- KEYS under_way? zset    jobs that have begun and not ended (stream and entry), by when (s since the epoch); for a service
-- KEYS ended_well? hash   metric: jobs that were done
-- KEYS ended_badly? hash  metric: jobs that ended without a result, by reason
-- KEYS failed?    hash    metric: attempts that have failed
-- KEYS retry?     hash    metric: attempts after the first
-- KEYS results...  string  values that processors have returned
-- ARGV group      whose attempts they are
-- ARGV consumer   who made them
-- ARGV capacity   about how many completions and dead jobs are kept
-- ARGV name       of the stream
-- ARGV control    channel of those who consume the stream: they hear of what is handed back
-- ARGV service    the id of this instance
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV channels   what the channels begin with where completions are published; the producer follows
-- ARGV head       what a completion begins with; the job follows
-- ARGV gone       the error of a job that could only be tried again if its entry had not been removed (JSON)
-- ARGV words...   thirteen for each attempt: entry, its number, outcome (`done`, `again`, `dead`, `back`, or `unread` if it goes
--   back and never began), job, producer, channel,
--   what is published, the error (JSON; empty for none), how long to wait before the next (s), values of a dead job (JSON),
--   how long it took (s), how long its result is kept (ms; empty: there is none), and the result; or four for a first attempt
--   that is done without a result: entry, nothing, job, producer
-- Returns 1 for each attempt that was ended, 0 for one that was not its consumer's any more. Run twice: 0.
local call = redis.call
local MAX_FIELDS, MAX_FIELD_BYTES, LEFT_MS = 4000, 1048576, 1000000000
local is_plain, now, stamp = not under_way, nil, nil
local many, last, place = 0, nil, 1
while place <= #words do
  local number, outcome = words[place + 1], words[place + 2]
  many, last, place = many + 1, words[place], place + (number == '' and 4 or 13)
  is_plain = is_plain and (number == '' or number == '1' and outcome == 'done')
end
local kinds = {}
local refused = wrong_type({
  stream = {stream, done or forward, not is_plain and dead or nil},
  zset = {wait, under_way},
  hash = {tries},
}, kinds)
if refused then return refused end
local has_tries = kinds[tries] == 'hash'
local waiting = kinds[wait] == 'zset'
if not is_plain then
  local time = call('TIME')
  now, stamp = time[1] + time[2] / 1e6, string.format('%d%03d', time[1], time[2] / 1000)
end

-- Return the errors of an entry with one more, as JSON.
local function errors_with(entry, attempt, err)
  local known = call('HGET', tries, entry)
  local one = '{"attempt":' .. attempt .. ',"at":' .. string.format('%.3f', now) .. ',"error":' .. err .. '}'
  return known and string.sub(known, 1, -2) .. ',' .. one .. ']' or '[' .. one .. ']'
end

-- Return the fields of an entry, as JSON; none if they are too many or too large to be sent again.
local function fields_of(entry)
  local found = call('XRANGE', stream, entry, entry)[1]
  local size = 0
  for _, word in ipairs(found and found[2] or {}) do size = size + #word end
  return found and #found[2] <= MAX_FIELDS and size <= MAX_FIELD_BYTES and cjson.encode(found[2]) or '[]'
end

-- Note for the audit and the history how an attempt has ended.
local function note(entry, job, attempt, outcome, took)
  if not under_way then return end
  local id = name .. ':' .. entry
  if outcome == 'again' then
    tally(failed, 'count')
    tally(retry, 'count')
    report('failed', id, job, name, service, attempt, took)
    report('retry', id, job, name, service, attempt + 1, took)
  elseif outcome ~= 'back' and call('ZREM', under_way, id) == 1 then
    if outcome == 'done' then
      tally(ended_well, 'count')
    else
      tally(ended_badly, 'count')
      tally(ended_badly, 'failed')
    end
    report(outcome, id, job, name, service, attempt, took)
  end
end

local is_back = false

-- Note that an attempt does not count: who claims the entry makes it again.
local function set_free(entry)
  call('HSET', tries, entry .. ':free', 1)
  is_back = true
end

-- Have entries read again by anybody in the group, also by consumers that claim nothing, if it has read nothing behind them;
-- others wait to be claimed.
local function undeliver(entries)
  local of_group
  for _, each in ipairs(call('XINFO', 'GROUPS', stream)) do
    if named(each).name == group then of_group = named(each) end
  end
  local position, read, back = of_group['last-delivered-id'], of_group['entries-read'], {}
  table.sort(entries, function(one, other) return is_after(one, other) end)
  for _, entry in ipairs(entries) do
    if entry == position then
      local before = call('XREVRANGE', stream, '(' .. entry, '-', 'COUNT', 1)[1]
      position = before and before[1] or '0-0'
      back[#back + 1] = entry
    else
      set_free(entry)
      call('ZADD', wait, now, entry)
    end
  end
  if #back == 0 then return end
  if read then call('XGROUP', 'SETID', stream, group, position, 'ENTRIESREAD', string.format('%d', math.max(0, read - #back)))
  else call('XGROUP', 'SETID', stream, group, position) end
  for _, entry in ipairs(back) do call('XACK', stream, group, entry) end
  call('PUBLISH', control, 'read')
end

-- What the consumer has in hand between the first and the last entry, in one call; others are asked for one by one.
local attempts = {}
if many > 1 then
  for _, each in ipairs(call('XPENDING', stream, group, words[1], last, many, consumer)) do
    attempts[each[1]] = each[4]
  end
end
local ended, at, is_trimmed, unread = {}, 0, false, {}
place = 1
while place <= #words do
  local entry, attempt, outcome, job, producer, channel, message, err, seconds, values, took, ttl, result
  if words[place + 1] == '' then
    entry, attempt, outcome, job, ttl = words[place], '1', 'done', words[place + 2], ''
    channel, message = channels .. words[place + 3], head .. job .. '","kept":true}'
    place = place + 4
  else
    entry, attempt, outcome, job, producer, channel, message, err, seconds, values, took, ttl, result =
      unpack(words, place, place + 12)
    place = place + 13
  end
  if ttl ~= '' then at = at + 1 end
  local owned = attempts[entry]
  if not owned then
    local found = call('XPENDING', stream, group, entry, entry, 1, consumer)[1]
    owned = found and found[4]
  end
  if owned == tonumber(attempt) and outcome ~= 'done' and outcome ~= 'dead' and #call('XRANGE', stream, entry, entry) == 0 then
    outcome, message = 'dead', string.sub(head, 1, -2) .. cjson.encode(job) .. ',"err":' .. gone .. ',"kept":true}'
    err, values = err ~= '' and err or gone, '{}'
  end
  if owned ~= tonumber(attempt) then
    ended[#ended + 1] = 0
  elseif waiting and call('ZSCORE', wait, entry) then  -- it was ended before, and the reply was lost
    ended[#ended + 1] = 0
  elseif has_tries and outcome == 'back' and seconds == '0' and call('HEXISTS', tries, entry .. ':suspect') == 1 then
    local together, out = string.match(call('HGET', tries, entry .. ':suspect'), '^(%d+)( ?)')
    if out ~= '' then  -- it stays a suspect, and is left to who may have such
      call('HSET', tries, entry .. ':suspect', string.format('%d', together))
      call('XCLAIM', stream, group, consumer, 0, entry, 'IDLE', LEFT_MS, 'RETRYCOUNT', attempt, 'JUSTID')
      is_back = true
    end
    ended[#ended + 1] = out ~= '' and 1 or 0
  elseif outcome == 'unread' then
    unread[#unread + 1] = entry
    attempts[entry] = 0
    ended[#ended + 1] = 1
  elseif outcome == 'again' or outcome == 'back' then
    call('HDEL', tries, entry .. ':suspect')
    if outcome == 'again' then call('HSET', tries, entry, errors_with(entry, attempt, err)) else set_free(entry) end
    call('ZADD', wait, now + seconds, entry)
    waiting = true
    note(entry, job, attempt, outcome, tonumber(took))
    ended[#ended + 1] = 1
  else
    if outcome == 'dead' then
      call('XADD', dead, 'MAXLEN', '~', capacity, '*', 'job', job, 'prd', producer, 'grp', group, 'entry', entry,
        'attempts', attempt, 'errors', errors_with(entry, attempt, err), 'values', values, 'fields', fields_of(entry))
    end
    if has_tries then call('HDEL', tries, entry, entry .. ':suspect') end
    if ttl ~= '' then
      local key = results[at]
      call('SET', key, result, 'PX', ttl)
    end
    call('XACK', stream, group, entry)
    attempts[entry] = nil
    if done then
      if is_trimmed then
        call('XADD', done, '*', 'job', job, 'msg', message)
      else
        call('XADD', done, 'MAXLEN', '~', capacity, '*', 'job', job, 'msg', message)
        is_trimmed = true
      end
      call('PUBLISH', channel, message)
    else
      call('XADD', forward, '*', 'job', job, 'msg', message, 'channel', channel)
    end
    note(entry, job, attempt, outcome, tonumber(took))
    ended[#ended + 1] = 1
  end
end
if #unread > 0 then undeliver(unread) end
if is_back then call('PUBLISH', control, 'due 0') end
write_events(stamp, tonumber(history))
write_tallies()
return ended
