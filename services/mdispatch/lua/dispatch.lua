-- Register the oldest pending requests and push them to `out`, then take the next ones from `source`. All or none.
--
-- WITH lease
-- WITH types: length problem
-- WITH numbers: whole countable MAX_ID
-- WITH chain: link
-- WITH letters: push_letter
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- WITH reading: take
-- WITH held: note enter keep
-- KEYS pending     list    what this instance has taken and not settled (oldest at the tail)
-- KEYS source      list    what clients push to (newest at the head)
-- KEYS out         list    what workers take from
-- KEYS counter     string  the last id that was given to a message
-- KEYS ids         list    ids in flight, newest at the head
-- KEYS deadlines   zset    ids in flight by deadline (s since the epoch)
-- KEYS pushed      hash    the number of the last message that was pushed to a list, by the list's name
-- KEYS looks       hash    up to which number a list had been taken, and when: `number:seconds`, the oldest first, by name
-- KEYS delayed     zset    ids to deliver later, by the time of delivery
-- KEYS letters?    list    dead letters, JSON; left out if no request is to be rejected
-- KEYS deaths?     hash    how often an instance died with a message in hand, by the SHA-1 of the message; left out if
--                          none did with these
-- KEYS delivered   hash    metric: requests pushed to `out`
-- KEYS registered  hash    metric: requests tracked
-- KEYS untracked   hash    metric: requests pushed to `out` without a record, for want of capacity
-- KEYS dropped     hash    metric: requests dropped since their deadline had passed, by reason
-- KEYS dead        hash    metric: dead letters, by reason
-- KEYS lease?      hash    owner token expires of the one active replica
-- KEYS subjects... hash    two a request: its record, and that of its xid
-- ARGV token       the lease's fencing token that the caller holds
-- ARGV held        how many messages the caller expects in `pending`; the script does nothing if there are others
-- ARGV batch       maximum number of messages to take
-- ARGV bytes       take no more once they have this many bytes together
-- ARGV spare       1 if the caller has an id in reserve
-- ARGV service     the caller's id
-- ARGV every       how often monitors check which messages have been taken (s), while it is not known of all
-- ARGV timeout     how long a worker has (s)
-- ARGV expire      how long a record lives (s)
-- ARGV capacity    maximum number of messages to track; a delayed one is tracked in any case
-- ARGV history     maximum number of events to keep; 0 for none
-- ARGV payloads    1 if the events `registered` carry the requests, too
-- ARGV due         channel to publish on when something falls due before all else
-- ARGV survived    SHA-1 of the message that an instance died with, which is now out of hand; empty without `deaths`
-- ARGV first       the id of the oldest; the others follow
-- ARGV prefix      how many bytes of the name of an xid's record come before the xid
-- ARGV requests... one a request, or one for all: the type of its xid (`number`, `meta`, `sha1`), or JSON with `type`
--                  and `replyTo` (the list for its answer), `attempts` (most deliveries), `until` (s since the epoch: then
--                  it is useless), `details` (JSON, for its record and event), `when` (to deliver it: s since the epoch, or
--                  `+` s from now), `reject` (a reason for a dead letter) and `error`
-- Returns false if `pending` holds others; the first of the ids given to the messages taken (or kept in reserve), and the
-- messages. Run twice: nothing is done, since `pending` holds others.
-- From 1e8 on, Redis 7.2 writes round numbers of Lua as 3e+8; below, a format for each message is saved.
local WRITTEN_PLAIN = 9e7
local call, pcall = redis.call, redis.pcall
local count = #subjects / 2
local here = length('LLEN', pending)
length('HLEN', holds) length('HLEN', taken)
if problem then return problem end
note(pending, here)

local waiting, listed = length('LLEN', source), length('LLEN', ids)
local in_flight, held_back = length('ZCARD', deadlines), length('ZCARD', delayed)
local room = capacity - in_flight - held_back
length('LLEN', out)
length('XLEN', events) length('HLEN', events_written) length('ZCARD', events_marks)
length('HLEN', pushed) length('HLEN', looks) length('HLEN', delivered) length('HLEN', registered)
length('HLEN', dropped)
if room < count then length('HLEN', untracked) end
if letters then length('LLEN', letters) length('HLEN', dead) end
if deaths then length('HLEN', deaths) end
local given = pcall('GET', counter)
if type(given) == 'table' then length('STRLEN', counter)
elseif not countable(given, tonumber(batch) + 1) then
  problem = redis.error_reply('WRONGTYPE ' .. counter .. ' holds no id of a message')
end
if problem then return problem end
if here ~= tonumber(held) then return false end

-- What each request asks for besides its type, with `wait`, the seconds until its delivery: read before anything is written.
local time = call('TIME')
local now, stamp = time[1] + time[2] / 1e6, string.format('%d.%06d', time[1], time[2])
local asked = {}
for place, request in ipairs(requests) do
  local more = string.byte(request) == 123 and cjson.decode(request)
  if more then
    local sign, seconds = string.match(more.when or '', '^(%+?)(%d.*)$')
    more.wait = (tonumber(seconds) or 0) - (sign == '' and now or 0)
    more['until'] = tonumber(more['until']) and more['until']
  end
  asked[place] = more
end

-- Rotating a list in place changes nothing, but a full server refuses it. It checks that only before a script's first
-- write: from here on nothing can fail.
local refused = pcall('LMOVE', pending, pending, 'RIGHT', 'RIGHT')
if type(refused) == 'table' and refused.err then return refused end

local at, deadline = string.format('%d%03d', time[1], time[2] / 1000), string.format('%.6f', now + timeout)
if tonumber(history) == 0 then report = function() end end
local push, tracked, deadlines_of, later = {}, {}, {}, {}
local last = whole(call('HGET', pushed, out), MAX_ID) or 0
local ours, late, soonest = 0, 0, math.huge
-- The server would rewrite each EXPIRE to PEXPIREAT.
local gone = string.format('%d%03d', time[1] + expire, time[2] / 1000)

-- Check all records at once, since two messages rarely have the same xid.
local linked = {}
local all_new = count > 0 and call('EXISTS', unpack(subjects, 1, #subjects)) == 0

-- Add a message to the chain of its xid.
local function register_xid(key, id, kind, answer)
  if all_new and not linked[key] then
    linked[key] = true
    if answer then call('HSET', key, 'id', id, 'type', kind, 'replyTo:' .. id, answer)
    else call('HSET', key, 'id', id, 'type', kind) end
  elseif not link(key, id, kind, answer) then
    return
  end
  call('PEXPIREAT', key, gone)
end

-- Return the fields that only some records have.
local MORE, NONE = {'replyTo', 'attempts', 'until', 'details'}, {}
local function more_fields(more)
  local fields = {}
  for _, word in ipairs(MORE) do
    if more[word] then fields[#fields + 1], fields[#fields + 2] = word, more[word] end
  end
  return unpack(fields, 1, #fields)
end

-- If somebody else has written another type to the key of a record, that message gets no record; the batch goes on.
local function delay(record, id, xid, kind, more, message, wait)
  local made = pcall('HSET', record, 'timestamp', stamp, 'xid', xid, 'service', service, 'attempt', 0, 'queue', out,
    'message', message, 'type', kind, more_fields(more))
  if type(made) == 'number' then call('EXPIRE', record, string.format('%.0f', math.ceil(wait) + expire)) end
  soonest = math.min(soonest, now + wait)
  later[#later + 1] = now + wait
  later[#later + 1] = id
  report('registered', id, xid, out, service, 0, nil, payloads == '1' and message, more.details)
  report('delayed', id, xid, out, service, 0)
end

local messages = count > 0 and call('RPOP', pending, count) or {}
for place = 1, count do
  local record, key = subjects[2 * place - 1], subjects[2 * place]
  local message, kind, wait = messages[place], requests[place] or requests[1], 0
  local id, xid = string.format('%d', first + place - 1), string.sub(key, prefix + 1)
  local more = asked[requests[place] and place or 1]
  if more then kind, wait = more.type, more.wait end
  if more and more.reject then
    push_letter({message = message, reason = more.reject, error = more.error, source = source, queue = out, attempts = 0,
      at = tonumber(at), service = service})
    tally(dead, 'count')
    tally(dead, more.reject)
  elseif more and more['until'] and tonumber(more['until']) <= now then
    late = late + 1
  elseif wait > 0 then
    delay(record, id, xid, kind, more, message, wait)
  else
    push[#push + 1] = message
    if ours + #later / 2 < room then
      ours = ours + 1
      local made = pcall('HSET', record, 'timestamp', stamp, 'xid', xid, 'deadline', deadline, 'service', service,
        'attempt', 1, 'queue', out, 'message', message, 'number', last < WRITTEN_PLAIN and last + #push or string.format('%.0f', last + #push), more_fields(more or NONE))
      if type(made) == 'number' then call('PEXPIREAT', record, gone) end
      register_xid(key, id, kind, more and more.replyTo)
      report('registered', id, xid, out, service, 1, nil, payloads == '1' and message, more and more.details)
      tracked[ours] = id
      -- A microsecond apart, so that those of one batch fall due in the order in which they came.
      deadlines_of[2 * ours - 1], deadlines_of[2 * ours] = now + timeout + ours * 1e-6, id
    end
  end
end

if #push > 0 then
  call('LPUSH', out, unpack(push, 1, #push))
  call('HSET', pushed, out, string.format('%d', last + #push))
end
local next_due = math.huge
local function schedule(key, known, entries, earliest)
  local head = known > 0 and call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  call('ZADD', key, unpack(entries, 1, #entries))
  if not head or earliest < tonumber(head) then next_due = math.min(next_due, earliest) end
end
if #tracked > 0 then
  call('LPUSH', ids, unpack(tracked, 1, #tracked))
  if listed + #tracked > tonumber(capacity) then call('LTRIM', ids, 0, capacity - 1) end
  schedule(deadlines, in_flight, deadlines_of, deadlines_of[1])
  local seen = tonumber(string.match(call('HGET', looks, out) or '', '(%-?%d+):[%d%.]+$')) or 0
  if in_flight == 0 or last <= seen then next_due = math.min(next_due, now + every) end
end
if #later > 0 then schedule(delayed, held_back, later, soonest) end
if next_due < math.huge then call('PUBLISH', due, string.format('%.6f', next_due)) end
if count > 0 then
  write_events(at, tonumber(history))
  pcall('HINCRBY', taken, out, count)
  pcall('HINCRBY', delivered, 'count', #push)
  pcall('HINCRBY', delivered, out, #push)
  pcall('HINCRBY', registered, 'count', #tracked + #later / 2)
  tally(dropped, 'count', late)
  tally(dropped, 'deadline', late)
  if #push > #tracked then pcall('HINCRBY', untracked, 'count', #push - #tracked) end
  write_tallies()
end
if deaths then call('HDEL', deaths, survived) end

local found = {}
take(source, pending, found, math.min(batch, waiting), tonumber(bytes))
enter(#found)
keep(pending, here, here - count + #found)
local needed = #found > 0 and #found or 1 - spare
return {needed > 0 and call('INCRBY', counter, needed) - needed + 1 or 0, found}
