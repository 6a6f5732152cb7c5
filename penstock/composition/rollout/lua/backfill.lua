-- Copy to a new subscriber what another one holds: the newest messages that were delivered before the new one existed.
--
-- Every message that the new one got, the other got, too, as its newest; so the messages to copy begin after those.
--
-- WITH types: wrong_type
-- WITH reading: several saw largest_read
-- KEYS source     list   the other subscriber's (newest at the head)
-- KEYS target     list   the new one's
-- KEYS taken      hash   metric of the service that fills both: by list the copies owed to it
-- KEYS delivered  hash   metric: by list the copies that it got
-- ARGV batch      maximum number of messages to copy
-- ARGV bytes      copy no more once they have this many bytes together
-- Returns how many were copied, and the bytes of the largest. Run twice: the second run copies those before them.
local call = redis.call
local refused = wrong_type({list = {source, target}, hash = {taken, delivered}})
if refused then return refused end
local given = tonumber(call('HGET', taken, target) or 0)
local possible = tonumber(call('HGET', taken, 'count') or 0) - given
local most = math.min(tonumber(batch), possible)
local copied, left = 0, math.min(most, math.max(call('LLEN', source) - given, 0))
local count = several(source, given, left, tonumber(bytes), true)
while count > 0 do
  local older = call('LRANGE', source, given + copied, given + copied + count - 1)
  saw(older)
  call('RPUSH', target, unpack(older, 1, count))
  copied = copied + count
  count = several(source, given + copied, left - copied, tonumber(bytes), true)
end
if copied > 0 then
  call('HINCRBY', taken, target, copied)
  call('HINCRBY', delivered, target, copied)
  call('HINCRBY', delivered, 'count', copied)
end
return {copied, largest_read}
