-- Put back what was taken and not settled: to the old end of its list, in order, so that it is taken next.
--
-- FLAGS allow-oom
-- KEYS pending  list   what was taken (newest at the head)
-- KEYS source   list   where it came from
-- ARGV most     most messages to move
-- Returns how many were moved. Run twice: the second run moves those behind them.
local back = 0
while back < tonumber(most) and redis.call('LMOVE', pending, source, 'LEFT', 'RIGHT') do back = back + 1 end
return back
