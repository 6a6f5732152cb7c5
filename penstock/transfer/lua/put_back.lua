-- Put back what was taken and not settled: to the old end of its list, in order, so that it is taken next.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH moving: move
-- KEYS pending  list   what was taken (newest at the head)
-- KEYS source   list   where it came from
-- KEYS state?   hash   `source`, the source id for the other server; with the last message only `ended` is left: that id
-- KEYS takers?  zset   names that may hold a pending list of this source; `who` is removed
-- KEYS steps?   hash   what is recorded of each consumer; that of `who` is removed
-- ARGV who      the source id as the caller knows it, or the name whose list it is; if `state` has another, nothing is done
-- ARGV settled  how many of the oldest are settled: they are removed
-- ARGV kept     how many of the oldest of the others stay
-- ARGV most     maximum number of messages to move
-- ARGV bytes    move no more once they have this many bytes together
-- Returns how many were put back. Run twice with settled 0: the second run moves those behind them, or finds nothing.
local call = redis.call
local refused = wrong_type({list = {pending, source}, hash = {state, steps}, zset = {takers}})
if refused then return refused end
if state and call('HGET', state, 'source') ~= who then return 0 end
if tonumber(settled) > 0 then call('RPOP', pending, settled) end
most = math.min(tonumber(most), call('LLEN', pending) - kept)
local back = most > 0 and move(pending, source, 'LEFT', 'RIGHT', most, tonumber(bytes)) or 0
if state and call('LLEN', pending) == 0 then
  call('DEL', state)
  call('HSET', state, 'ended', who)
end
if takers then call('ZREM', takers, who) end
if steps then call('HDEL', steps, who) end
return back
