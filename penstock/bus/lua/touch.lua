-- Keep queues alive that clients are attached to.
--
-- FLAGS allow-oom
-- WITH numbers: whole MAX_TTL
-- KEYS keys...  hash  four of each queue: metadata, and its messages, msgid and toack, which are no hashes
-- ARGV ttls...  seconds, one of each queue, as the caller knows them; those in the metadata count
-- Returns the places, from 1 on, of the queues that do not exist any more; and of each queue with another ttl its place and
-- that. Run twice: the same again.
local gone, changed, ttl = {}, {}, nil
for number, key in ipairs(keys) do
  local place = math.ceil(number / 4)
  if number % 4 == 1 then
    local stored = redis.pcall('HGET', key, 'ttl')
    ttl = type(stored) == 'string' and whole(stored, MAX_TTL) or tonumber(ttls[place])
    if ttl ~= tonumber(ttls[place]) then changed[#changed + 1], changed[#changed + 2] = place, ttl end
  end
  if redis.call('EXPIRE', key, string.format('%.0f', ttl)) == 0 and number % 4 == 1 then gone[#gone + 1] = place end
end
return {gone, changed}
