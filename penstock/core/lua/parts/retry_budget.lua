-- Limit retries to a share of the requests: a bucket has room for what 1,000 requests give, begins full, gets its share
-- with each request that is registered, and gives one away for each retry.
--
-- GIVES may_retry write_budget
-- KEYS budget       hash  `left` in the bucket, and `registered`, the number of requests at its last use
-- KEYS registered   hash  metric: requests tracked
-- ARGV share        retries for each request, e.g. 0.1; empty: no limit
local REQUESTS, HAIR = 1000, 1e-6
local left

local function may_retry()
  if share == '' then return true end
  if not left then
    local known, count = redis.call('HMGET', budget, 'left', 'registered'), redis.call('HGET', registered, 'count')
    local since = math.max((tonumber(count) or 0) - (tonumber(known[2]) or 0), 0)
    left = math.min((tonumber(known[1]) or math.huge) + since * share, REQUESTS * share)
  end
  if left < 1 - HAIR then return false end
  left = left - 1
  return true
end

-- At the end of the script: keep what is left.
local function write_budget()
  if left then
    local count = redis.call('HGET', registered, 'count') or 0
    redis.call('HSET', budget, 'left', string.format('%.6f', left), 'registered', count)
  end
end
