-- Let each message pass once: push it to `out`, unless its key is remembered.
--
-- USES tally taken
-- GIVES once_keys pass end_passing
-- KEYS remembered   zset  keys of messages that have passed, by the time (us)
-- KEYS out          list  where messages go
-- KEYS duplicates?  list  where duplicates go; without it they are dropped
-- KEYS settled      hash  metric: messages that left the pending list
-- KEYS delivered    hash  metric: messages pushed
-- KEYS dropped      hash  metric: duplicates that went nowhere
-- KEYS duplicate    hash  metric: duplicates
-- KEYS forgotten    hash  metric: keys forgotten before their time
-- ARGV expire       how long a key is remembered (s)
-- ARGV capacity     maximum number of keys remembered; beyond that the oldest is forgotten
-- ARGV origin       the list that messages come from, for the counters
local MOST = 5000
local once_keys = {list = {out, duplicates}, zset = {remembered}, hash = {settled, delivered, dropped, duplicate, forgotten}}
local time = redis.call('TIME')
local now, lasts = time[1] * 1e6 + time[2], tonumber(expire)
local since = now - lasts * 1e6
local passed, repeated, remembers = 0, 0, 0

-- Have no key be younger than now, as those are which were remembered before the clock was set back: else they would stay
-- for as much longer. Some thousand at a time.
local function end_future()
  local ahead = redis.call('ZRANGEBYSCORE', remembered, string.format('(%.0f', now + 1e6), '+inf', 'LIMIT', 0, MOST)
  for _, key in ipairs(ahead) do redis.call('ZADD', remembered, 'XX', now, key) end
end

-- Remember `key`; return false if it was remembered already. It is remembered from the message that passed: a duplicate
-- does not begin the time anew. Keys of one script differ by a microsecond each, so that the oldest is known.
local function is_new(key)
  local added = redis.call('ZADD', remembered, 'NX', now + remembers, key) == 1
  if not added and tonumber(redis.call('ZSCORE', remembered, key)) > since then return false end
  if not added then redis.call('ZADD', remembered, now + remembers, key) end
  remembers = remembers + 1
  return true
end

-- Push `messages`, oldest first, where they belong. Their keys are `known`, or the SHA-1 of each.
local function pass(messages, known)
  local new, old = {}, {}
  end_future()
  for place = 1, #messages do
    local message = messages[place]
    local kind = is_new(known and known[place] or redis.sha1hex(message)) and new or old
    kind[#kind + 1] = message
  end
  if #new > 0 then redis.call('LPUSH', out, unpack(new, 1, #new)) end
  if #old > 0 and duplicates then redis.call('LPUSH', duplicates, unpack(old, 1, #old)) end
  passed, repeated = passed + #new, repeated + #old
end

-- Forget keys whose time is over, and the oldest beyond the capacity, some thousand at most. Return how many of these.
local function forget()
  local expired = redis.call('ZCOUNT', remembered, '-inf', since)
  if expired > 0 then redis.call('ZREMRANGEBYRANK', remembered, 0, math.min(expired, MOST) - 1) end
  local beyond = math.min(redis.call('ZCARD', remembered) - tonumber(capacity), MOST)
  if beyond < 1 then return 0 end
  redis.call('ZREMRANGEBYRANK', remembered, 0, beyond - 1)
  return math.max(beyond - math.max(expired - MOST, 0), 0)
end

-- Forget what is too old, have the rest expire by itself, and count.
local function end_passing()
  tally(forgotten, 'count', forget())
  if passed > 0 then redis.call('EXPIRE', remembered, string.format('%.0f', lasts + 1)) end
  tally(settled, 'count', passed + repeated)
  tally(duplicate, 'count', repeated)
  local counted = {[out] = {delivered, passed}, [duplicates or origin] = {duplicates and delivered or dropped, repeated}}
  for list, pair in pairs(counted) do
    tally(taken, list, pair[2])
    tally(pair[1], list, pair[2])
    tally(pair[1], 'count', pair[2])
  end
end
