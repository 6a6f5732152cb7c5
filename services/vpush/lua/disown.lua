-- Forget who we are to the other server: what arrived there from us is not what was here.
--
-- WITH lease
-- KEYS state  hash   `source`, who we are to the other server, and `sequence`, the number of the last settled message
-- KEYS lease  hash   owner token expires of the one active replica
-- ARGV token  the lease's fencing token that the caller holds
-- ARGV who    who the caller takes us for
-- Returns 1 where we are nobody any more. Run twice: the second run finds nobody.
if redis.call('HGET', state, 'source') ~= who then return 0 end
return redis.call('DEL', state)
