-- Note that another site has a queue, unless it is here.
--
-- WITH types: wrong_type
-- KEYS metadata  hash  what the queue is; with a field `ttl` it is here, and nothing is noted
-- ARGV source    where the queue is
-- ARGV ttl       seconds for which that is known
-- Returns 1, or 0 if the queue is here. Run twice: the same again.
local refused = wrong_type({hash = {metadata}})
if refused then return refused end
if redis.call('HEXISTS', metadata, 'ttl') == 1 then return 0 end
redis.call('HSET', metadata, 'source', source)
redis.call('EXPIRE', metadata, ttl)
return 1
