-- Pass permits of a limit on to jobs that wait for one.
--
-- USES limit
-- GIVES pass_on give_back
-- KEYS stream     stream  jobs
-- KEYS busy       zset    permits in use (key, a space, holder), by the end of their lease (s since the epoch)
-- KEYS parked     zset    jobs that wait for a permit of their key: key, a space and entry, all with the score 0
-- KEYS wait       zset    entries that are to be tried again, by when (s since the epoch); nobody claims them before
-- ARGV group      whose jobs they are
-- ARGV lease      how long a permit is in use if nobody renews it (s)

-- Give a permit that is free to the first job that waits for one of `key` and is still there; return whether one is.
local function pass_on(key, now)
  local call = redis.call
  while true do
    local first = call('ZRANGEBYLEX', parked, '[' .. key .. ' ', '(' .. key .. '!', 'LIMIT', 0, 1)[1]
    if not first then return false end
    local ms, seq = string.match(first, ' 0*(%d+)%-0*(%d+)$')
    local entry = ms and ms .. '-' .. seq
    call('ZREM', parked, first)
    -- also one that is gone: then it is forgotten there
    if entry then call('ZADD', wait, now, entry) end
    if entry and call('XRANGE', stream, entry, entry)[1] and redis.pcall('XPENDING', stream, group, entry, entry, 1)[1] then
      call('ZADD', busy, now + lease, key .. ' ' .. entry)
      return true
    end
  end
end

-- Count one permit of `key` less that is in use.
local function give_back(key)
  local left = redis.pcall('HINCRBY', limit, key .. ':count', -1)
  if type(left) ~= 'number' or left <= 0 then redis.call('HDEL', limit, key .. ':count') end
end
