-- Record the caller as sender for one source, and read what has arrived from it. Senders with a lower token are refused
-- from now on.
--
-- WITH types: wrong_type
-- KEYS ledger  hash   `token sequence first digest at`: what has arrived from this source
-- ARGV token   the sender's fencing token
-- Returns the stored token before this call, the sequence, first and digest, each empty if there is none (the token: 0).
-- If that token >= `token`, the caller is fenced off. Run twice: the same again, but for the token.
local call = redis.call
local refused = wrong_type({hash = {ledger}})
if refused then return refused end
local known = call('HMGET', ledger, 'token', 'sequence', 'first', 'digest')
if tonumber(known[1] or 0) < tonumber(token) then call('HSET', ledger, 'token', token) end
return {known[1] or '0', known[2] or '', known[3] or '', known[4] or ''}
