-- Begin as the only sender of a source: with its id, and a fencing token above one that was seen elsewhere, that of the run
-- before, whose last batches may still be in transit, or one of a time that this server has lost.
--
-- FLAGS allow-oom
-- WITH lease
-- WITH types: wrong_type
-- KEYS state  hash  `source`, the source id for the other server, and `sequence`, the number of the last settled message
-- KEYS lease  hash  owner token expires of the one active replica
-- ARGV token  the fencing token that the caller holds
-- ARGV past   the token that was seen, -1 if none was
-- ARGV new    the source id, unless there is one
-- Returns the source id, the number of the last settled message, and the token that the caller holds now. Run twice: the same
-- again, or refused if the first run has raised the token.
local call = redis.call
local refused = wrong_type({hash = {state}})
if refused then return refused end
token = tonumber(token)
if tonumber(past) >= token then token = call('HINCRBY', lease, 'token', string.format('%d', past - token + 1)) end
call('HSETNX', state, 'source', new)
local known = call('HMGET', state, 'source', 'sequence')
return {known[1], known[2] or '0', token}
