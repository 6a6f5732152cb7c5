-- Keep a list of answers for as long as its importer lives; remove those of importers that died long ago.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS replies    zset  lists of answers, by the time (s since the epoch) from which on they may be removed
-- KEYS list       list  answers to the caller
-- KEYS stale...   list  those that an earlier call returned
-- ARGV expire     how long answers that nobody takes are kept (s)
-- ARGV linger     how long after its importer's last call a list is removed (s): workers may still push to it
-- Returns lists that may be removed: name them in the next call. Run twice: the second run keeps the list as long again.
local call = redis.call
local lists = {list}
for _, key in ipairs(stale) do lists[#lists + 1] = key end
local refused = wrong_type({zset = {replies}, list = lists})
if refused then return refused end
local now = tonumber(call('TIME')[1])
call('ZADD', replies, now + linger, list)
call('EXPIRE', list, expire)
for _, key in ipairs(stale) do
  local ends = call('ZSCORE', replies, key)
  if ends and tonumber(ends) <= now then
    call('UNLINK', key)
    call('ZREM', replies, key)
  end
end
return call('ZRANGEBYSCORE', replies, '-inf', now, 'LIMIT', 0, 100)
