-- Register the oldest pending requests and push them to `out`, then take the next ones from `source`. All or none.
--
-- KEYS pending     list    what this instance has taken and not settled (oldest at the tail)
-- KEYS source      list    what clients push to (newest at the head)
-- KEYS out         list    what workers take from
-- KEYS counter     string  the last id that was given to a message
-- KEYS ids         list    ids in flight, newest at the head
-- KEYS deadlines   zset    ids in flight by deadline (s since the epoch)
-- KEYS delayed     zset    ids to be delivered later, by when
-- KEYS events      stream  the life of messages
-- KEYS letters     list    dead letters, JSON
-- KEYS deaths      hash    how often an instance died with a message in hand, by the SHA-1 of the message
-- KEYS taken       hash    metric: requests settled, and copies owed to `out`
-- KEYS delivered   hash    metric: requests pushed to `out`
-- KEYS registered  hash    metric: requests tracked
-- KEYS untracked   hash    metric: requests pushed to `out` without a record, for want of capacity
-- KEYS dead        hash    metric: dead letters, by reason
-- KEYS lease?      hash    owner token expires of the one active replica
-- KEYS subjects... hash    two a request: its record, and that of its xid
-- ARGV token       the lease's fencing token that the caller holds
-- ARGV held        how many messages `pending` holds as the caller knows it; nothing is done where it holds others
-- ARGV batch       most messages to take
-- ARGV bytes       no more are taken once they reach this size together
-- ARGV spare       1 where the caller has an id in reserve
-- ARGV service     the caller's id
-- ARGV timeout     how long a worker has (s)
-- ARGV expire      how long a record lives (s)
-- ARGV capacity    most messages to track; a delayed one is tracked in any case
-- ARGV history     most events to keep; 0 for none
-- ARGV due         channel that is told when something falls due before all else
-- ARGV survived    SHA-1 of a message that an instance died with, which is now out of hand; or empty
-- ARGV requests... five a request: id; xid; type, or `reject`; list for the answer, or the reason; when to deliver it
--                  (s since the epoch, `+` s from now, or empty), or what is wrong with it
-- Returns false where `pending` holds others; the first of the ids that are given to what was taken (or kept in
-- reserve), and what was taken. Run twice: nothing is done, since `pending` holds
-- others.
local call, pcall = redis.call, redis.pcall
if lease and call('HGET', lease, 'token') ~= token then return redis.error_reply('FENCED ' .. lease) end
for kind, keys in pairs({list = {pending, source, out, ids, letters}, zset = {deadlines, delayed}, stream = {events},
    hash = {taken, delivered, registered, untracked, dead, deaths}}) do
  for _, key in ipairs(keys) do
    local found = call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then
      return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. found .. ', expected a ' .. kind)
    end
  end
end
if call('LLEN', pending) ~= tonumber(held) then return false end

-- Rotating a list in place changes nothing, but the server refuses it when its memory is full, which it checks only
-- before a script's first write: from here on nothing can fail.
local refused = pcall('LMOVE', pending, pending, 'RIGHT', 'RIGHT')
if type(refused) == 'table' and refused.err then return refused end

local time = call('TIME')
local now, stamp = time[1] + time[2] / 1e6, string.format('%d.%06d', time[1], time[2])
local at, deadline = string.format('%d%03d', time[1], time[2] / 1000), string.format('%.6f', now + timeout)
history = tonumber(history)
local room = capacity - call('ZCARD', deadlines) - call('ZCARD', delayed)
local push, tracked, deadlines_of, later, rejected = {}, {}, {}, {}, {}

local function report(event, id, xid, attempt)
  if history > 0 then
    call('XADD', events, '*', 'event', event, 'id', id, 'xid', xid, 'at', at, 'queue', out, 'service', service,
      'attempt', attempt, 'seconds', '')
  end
end

-- A key that somebody else has put where a record belongs costs that message its record, not the batch its place.
local function record(place, id, xid, kind, answer, message, attempt, life)
  local key, xid_key = subjects[2 * place - 1], subjects[2 * place]
  local made
  if attempt == 1 then
    made = pcall('HSET', key, 'timestamp', stamp, 'xid', xid, 'deadline', deadline, 'service', service, 'attempt', 1,
      'queue', out, 'message', message)
  else
    made = pcall('HSET', key, 'timestamp', stamp, 'xid', xid, 'service', service, 'attempt', 0, 'queue', out, 'message',
      message, 'type', kind)
  end
  if type(made) == 'table' then return end
  if answer ~= '' then call('HSET', key, 'replyTo', answer) end
  call('EXPIRE', key, life)
  if attempt == 0 then return end
  if pcall('HSETNX', xid_key, 'id', id) == 1 then
    call('HSET', xid_key, 'type', kind)
  else
    local chain = pcall('HMGET', xid_key, 'id', 'last', 'dead')
    if chain.err then return end
    local last = chain[2] or chain[1]
    if chain[3] then
      call('DEL', xid_key)
      call('HSET', xid_key, 'id', id, 'type', kind)
    else
      call('HSET', xid_key, 'last', id, 'next:' .. last, id, 'before:' .. id, last)
    end
  end
  if answer ~= '' then call('HSET', xid_key, 'replyTo:' .. id, answer) end
  call('EXPIRE', xid_key, expire)
end

local count = #requests / 5
local messages = count > 0 and call('RPOP', pending, count) or {}
for place = 1, count do
  local message, first = messages[place], 5 * place - 4
  local id, xid, kind, answer, when = unpack(requests, first, first + 4)
  local wait = when == '' and 0 or string.sub(when, 1, 1) == '+' and tonumber(when) or tonumber(when) and when - now or 0
  if kind == 'reject' then
    rejected[answer] = (rejected[answer] or 0) + 1
    call('LPUSH', letters, cjson.encode({message = message, reason = answer, error = when, source = source, queue = out,
      attempts = 0, at = tonumber(at), service = service}))
  elseif wait > 0 then
    record(place, id, xid, kind, answer, message, 0, math.ceil(wait) + expire)
    report('registered', id, xid, 0)
    report('delayed', id, xid, 0)
    later[#later + 1] = string.format('%.6f', now + wait)
    later[#later + 1] = id
  else
    push[#push + 1] = message
    if #tracked < room then
      record(place, id, xid, kind, answer, message, 1, expire)
      report('registered', id, xid, 1)
      tracked[#tracked + 1] = id
      deadlines_of[#deadlines_of + 1] = deadline
      deadlines_of[#deadlines_of + 1] = id
    end
  end
end

if #push > 0 then call('LPUSH', out, unpack(push, 1, #push)) end
local function schedule(key, entries)
  local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  call('ZADD', key, unpack(entries, 1, #entries))
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if not head[2] or tonumber(first[2]) < tonumber(head[2]) then call('PUBLISH', due, first[2]) end
end
if #tracked > 0 then
  call('LPUSH', ids, unpack(tracked, 1, #tracked))
  call('LTRIM', ids, 0, capacity - 1)
  schedule(deadlines, deadlines_of)
end
if #later > 0 then schedule(delayed, later) end
if count > 0 then
  if history > 0 then call('XTRIM', events, 'MAXLEN', '~', history) end
  pcall('HINCRBY', taken, 'count', count)
  pcall('HINCRBY', taken, out, count)
  pcall('HINCRBY', delivered, 'count', #push)
  pcall('HINCRBY', delivered, out, #push)
  pcall('HINCRBY', registered, 'count', #tracked + #later / 2)
  if #push > #tracked then pcall('HINCRBY', untracked, 'count', #push - #tracked) end
  for reason, number in pairs(rejected) do
    pcall('HINCRBY', dead, 'count', number)
    pcall('HINCRBY', dead, reason, number)
  end
end
if survived ~= '' then call('HDEL', deaths, survived) end

local found, size = {}, 0
while #found < tonumber(batch) and size < tonumber(bytes) do
  local message = call('LMOVE', source, pending, 'RIGHT', 'LEFT')
  if not message then break end
  found[#found + 1] = message
  size = size + #message
end
local needed = #found > 0 and #found or 1 - spare
return {needed > 0 and call('INCRBY', counter, needed) - needed + 1 or 0, found}
