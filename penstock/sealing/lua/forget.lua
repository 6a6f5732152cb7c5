-- Delete all data keys of an owner for good, and leave a tombstone so that it never gets another one.
--
-- WITH types: wrong_type
-- KEYS wrapped  hash  wrapped data keys of the owner by epoch, and `epoch made sealed forgotten`
-- KEYS owners   zset  owners that have or had data keys, by when they got the first
-- ARGV owner    who is forgotten
-- ARGV channel  announces the owner to the other replicas
-- Returns how many keys were deleted. Run twice: the second run deletes none and keeps the tombstone.
local call = redis.call
local refused = wrong_type({hash = {wrapped}, zset = {owners}})
if refused then return refused end
local epochs, now = tonumber(call('HGET', wrapped, 'epoch') or 0), call('TIME')[1]
local since = call('HGET', wrapped, 'forgotten') or now
call('DEL', wrapped) -- before the other writes: a full server accepts it as the first, and then those
call('HSET', wrapped, 'forgotten', since)
call('ZADD', owners, 'NX', now, owner)
call('PUBLISH', channel, owner)
return epochs
