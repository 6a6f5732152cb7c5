-- Put back what a taker has not settled: to the old end of its list, in order, so that it is taken next.
--
-- FLAGS allow-oom
-- KEYS pending    list   what was taken (oldest at the tail)
-- KEYS source     list   where it came from
-- KEYS takers     zset   who may hold a pending list of this source
-- ARGV taker      whose pending list it is; forgotten
-- ARGV settled    how many of the oldest are settled: they go for good
-- Returns how many were put back. Run twice with settled 0: the second run finds nothing.
if tonumber(settled) > 0 then redis.call('RPOP', pending, settled) end
local back = 0
while redis.call('LMOVE', pending, source, 'LEFT', 'RIGHT') do back = back + 1 end
redis.call('ZREM', takers, taker)
return back
