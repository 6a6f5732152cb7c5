-- Token buckets. Each is a string with the time at which it is full again (us since the epoch), and expires then.
--
-- USES wrong_type
-- GIVES now full_at due write_bucket
-- ARGV interval  us in which a bucket gets one token
-- ARGV burst     tokens of a full bucket
local CENTURY = 3.2e15
local time = redis.call('TIME')
local now = time[1] * 1e6 + time[2]
interval, burst = tonumber(interval), tonumber(burst)

-- Return when the bucket `key` is full again, now if it is; or nil, and the error if it cannot be read. `latest` bounds
-- it, in case the clock was set back.
local function full_at(key, latest)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' then return nil, wrong_type({string = {key}}) or found end
  local at = tonumber(found or 0) or 0
  -- Somebody else's: infinite, no number, or beyond any time to live.
  if at - at ~= 0 or at > now + CENTURY then at = now end
  return math.min(math.max(at, now), latest)
end

-- Return when a bucket that is full again at `at` has a token.
local function due(at) return at - (burst - 1) * interval end

local function write_bucket(key, at)
  if at > now then redis.call('SET', key, string.format('%.0f', at), 'PX', string.format('%.0f', math.ceil((at - now) / 1000))) end
end
