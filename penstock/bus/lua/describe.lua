-- Set fields of a queue's metadata, and keep it alive.
--
-- WITH types: wrong_type
-- WITH relocation: leaving
-- WITH numbers: whole MAX_TTL
-- KEYS metadata   hash  what the queue is; nothing is set if it is missing
-- ARGV fields...  name and value of each
-- Returns 1, or 0 if the queue does not exist. Run twice: the same again.
local refused = wrong_type({hash = {metadata}}) or leaving(metadata)
if refused then return refused end
if redis.call('HEXISTS', metadata, 'ttl') == 0 then return 0 end
redis.call('HSET', metadata, unpack(fields, 1, #fields))
local ttl = whole(redis.call('HGET', metadata, 'ttl'), MAX_TTL)
if ttl then redis.call('EXPIRE', metadata, ttl) end
return 1
