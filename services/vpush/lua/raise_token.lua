-- Raise the lease's fencing token above one that was seen elsewhere: that of the run before, whose last batches may still
-- be in transit, or one of a time that this server has lost.
--
-- FLAGS allow-oom
-- WITH lease
-- KEYS lease  hash   owner token expires of the one active replica
-- ARGV token  the fencing token that the caller holds
-- ARGV past   the token that was seen
-- Returns the token that the caller holds now. Run twice: it is refused.
if tonumber(past) >= tonumber(token) then return redis.call('HINCRBY', lease, 'token', past - token + 1) end
return tonumber(token)
