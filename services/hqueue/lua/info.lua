-- Count the tasks of one queue.
--
-- KEYS ready      zset    ids of tasks that a worker may fetch, by index
-- KEYS held       zset    ids of tasks that workers have, by the end of their lease (s since the epoch)
-- KEYS later      zset    ids of tasks that wait for their time, by that time
-- KEYS behind     zset    tasks that wait for an older one with their key
-- KEYS order      zset    ids of all tasks that are kept, by index
-- KEYS tasks      hash    records by id
-- ARGV most       maximum number of tasks that workers have to return
-- Returns the last index; how many wait, are delayed, blocked, held and kept; the record of the oldest that waits, or nil;
-- the time (s since the epoch); and id and record in turn of those that workers have. Run twice: the same again.
local call = redis.call
local found = {}
for _, id in ipairs(call('ZRANGE', held, 0, most - 1)) do
  found[#found + 1] = id
  found[#found + 1] = call('HGET', tasks, id)
end
local first = call('ZRANGE', ready, 0, 0)[1]
local last = call('ZRANGE', order, -1, -1, 'WITHSCORES')[2]
return {last or '0', call('ZCARD', ready), call('ZCARD', later), call('ZCARD', behind), call('ZCARD', held),
  call('ZCARD', order), first and call('HGET', tasks, first) or false, call('TIME')[1], found}
