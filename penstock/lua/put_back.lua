-- Put back what was taken and not settled: to the old end of its list, in order, so that it is taken next.
--
-- FLAGS allow-oom
-- KEYS pending  list   what was taken (newest at the head)
-- KEYS source   list   where it came from
-- KEYS state    hash   `source`, who the mover is to the other server; with the last message only `ended`: who it was
-- ARGV who      who the caller takes itself for; nothing is done where it is another
-- ARGV most     most messages to move
-- ARGV bytes    no more are moved once they reach this size together
-- Returns how many are left. Run twice: the second run moves those behind them.
if redis.call('HGET', state, 'source') ~= who then return 0 end
local back, size = 0, 0
while back < tonumber(most) and size < tonumber(bytes) do
  local message = redis.call('LMOVE', pending, source, 'LEFT', 'RIGHT')
  if not message then break end
  back, size = back + 1, size + #message
end
local left = redis.call('LLEN', pending)
if left == 0 then
  redis.call('DEL', state)
  redis.call('HSET', state, 'ended', who)
end
return left
