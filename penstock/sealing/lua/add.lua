-- Add a data key to an owner, unless another replica was faster or the owner is forgotten.
--
-- WITH types: wrong_type
-- KEYS wrapped  hash  wrapped data keys of the owner by epoch, and `epoch made sealed forgotten`
-- KEYS owners   zset  owners that have or had data keys, by when they got the first
-- ARGV owner    whose key it is
-- ARGV epoch    its epoch, one more than the newest
-- ARGV key      the data key, wrapped
-- ARGV channel  announces the owner to the other replicas
-- Returns 1 if it was added, else 0. Run twice: the second run adds nothing.
local call = redis.call
local refused = wrong_type({hash = {wrapped}, zset = {owners}})
if refused then return refused end
local known = call('HMGET', wrapped, 'epoch', 'forgotten')
if known[2] or tonumber(known[1] or 0) ~= epoch - 1 then return 0 end
local now = call('TIME')[1]
call('HSET', wrapped, epoch, key, 'epoch', epoch, 'made', now, 'sealed', 0)
call('ZADD', owners, 'NX', now, owner)
call('PUBLISH', channel, owner)
return 1
