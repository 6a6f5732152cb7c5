-- Read records of tasks of one queue, in their order.
--
-- KEYS tasks      hash    records by id
-- KEYS order      zset    ids of all tasks that are kept, by index
-- ARGV after      index behind which to begin
-- ARGV most       most records
-- Returns ids and records in turn. Run twice: the same again.
local found = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', order, '(' .. after, '+inf', 'LIMIT', 0, most)) do
  found[#found + 1] = id
  found[#found + 1] = redis.call('HGET', tasks, id)
end
return found
