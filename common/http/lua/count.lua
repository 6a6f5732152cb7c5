-- Add to counters, and keep the slowest request of all instances.
--
-- WITH types: wrong_type
-- KEYS counters   hash  metric: requests by what became of them; `slowest` in seconds
-- ARGV slowest    seconds of the caller's slowest request since its last call
-- ARGV counted... counter and what to add to it, one after the other
-- Returns how many counters it has added to. Run twice: the second run adds again.
local call = redis.call
local refused = wrong_type({hash = {counters}})
if refused then return refused end
for place = 1, #counted, 2 do redis.pcall('HINCRBY', counters, counted[place], counted[place + 1]) end
if tonumber(slowest) > (tonumber(call('HGET', counters, 'slowest')) or -1) then
  call('HSET', counters, 'slowest', slowest)
end
return #counted / 2
