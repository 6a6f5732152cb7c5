-- Write fields of a persisted object, and keep it alive.
--
-- WITH types: wrong_type
-- KEYS object     hash  field to its value as JSON
-- ARGV ttl        seconds that the object lives without another call
-- ARGV whole      1 if these are all its fields, 0 if not: then nothing is written if it does not exist
-- ARGV fields...  name and value of each
-- Returns 1, or 0 if nothing was written. Run twice: the same again.
local refused = wrong_type({hash = {object}})
if refused then return refused end
if whole == '0' and redis.call('EXISTS', object) == 0 then return 0 end
redis.call('HSET', object, unpack(fields, 1, #fields))
return redis.call('EXPIRE', object, ttl)
