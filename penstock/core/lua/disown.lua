-- Delete the source id: the messages here are not those that have arrived under it.
--
-- WITH lease
-- KEYS state  hash  `source`, the source id for the other server, and `sequence`, the number of the last settled message
-- KEYS lease  hash  owner token expires of the one active replica
-- ARGV token  the lease's fencing token that the caller holds
-- ARGV who    the source id as the caller knows it
-- Returns 1 if the source id was deleted, 0 if it was another one. Run twice: the second run finds none.
if redis.call('HGET', state, 'source') ~= who then return 0 end
return redis.call('DEL', state)
