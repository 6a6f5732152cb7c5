-- Renew the leases of consumers that have their queues alone.
--
-- FLAGS allow-oom
-- KEYS leases...  string  who has the queue
-- ARGV seconds    the lease
-- ARGV owners...  the caller's name, one of each lease
-- Returns the places, from 1 on, of the leases that another has, and below 0 of those that nobody had: they are taken again.
-- Run twice: those that were taken again are not among them.
local ended = {}
for place, lease in ipairs(leases) do
  local holder = redis.pcall('GET', lease)  -- a key of another type gives an error, which is nobody's name
  if holder ~= owners[place] then ended[#ended + 1] = holder and place or -place end
  if not holder or holder == owners[place] then redis.call('SET', lease, owners[place], 'EX', seconds) end
end
return ended
