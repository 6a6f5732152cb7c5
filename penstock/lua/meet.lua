-- What arrived here from one source; from now on only the one who asks, or whoever asks later, may send more.
--
-- WITH types: wrong_type
-- KEYS ledger  hash   `token sequence first digest at`: what arrived from this source
-- ARGV token   the fencing token of the sender
-- Returns the highest token before, the sequence, first and digest, empty where there are none. Where that token is not
-- lower, nobody may send but its holder. Run twice: the same again, but for the token.
local call = redis.call
local refused = wrong_type({hash = {ledger}})
if refused then return refused end
local known = call('HMGET', ledger, 'token', 'sequence', 'first', 'digest')
if tonumber(known[1] or 0) < tonumber(token) then call('HSET', ledger, 'token', token) end
return {known[1] or '0', known[2] or '', known[3] or '', known[4] or ''}
