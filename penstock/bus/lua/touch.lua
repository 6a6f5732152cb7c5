-- Keep queues alive that clients are attached to.
--
-- FLAGS allow-oom
-- KEYS keys...  hash  four of each queue: metadata, and its messages, msgid and toack, which are no hashes
-- ARGV ttls...  seconds, one of each queue
-- Returns the places, from 1 on, of the queues that do not exist any more. Run twice: the same again.
local gone = {}
for number, key in ipairs(keys) do
  local place = math.ceil(number / 4)
  if redis.call('EXPIRE', key, ttls[place]) == 0 and number % 4 == 1 then gone[#gone + 1] = place end
end
return gone
