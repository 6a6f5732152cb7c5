-- Record the caller as the sender for an outbox, and read what has arrived from it in a queue. Senders with a lower token are
-- refused from now on.
--
-- WITH types: wrong_type
-- WITH relocation: leaving gone
-- WITH ledger: noted note KEPT_SECONDS
-- KEYS metadata  hash  what the queue is: an error if it is missing, since its ledger may be elsewhere
-- KEYS ledger    hash  what has come from each outbox
-- ARGV source    the outbox
-- ARGV token     its fencing token
-- ARGV start     the number of the last message, if nothing is known of the outbox
-- Returns the stored token before this call, and the number of the last message, 0 and `start` if there is none. If that
-- token >= `token`, the caller is fenced off. Run twice: the same again, but for the token.
local call = redis.call
local refused = wrong_type({hash = {metadata, ledger}}) or leaving(metadata) or gone(metadata)
if refused then return refused end
local known, sequence = noted()
token = tonumber(token)
if known == 0 then sequence = tonumber(start) end
if known < token then note(token, sequence) end
local now, some = tonumber(call('TIME')[1]), call('HRANDFIELD', ledger, 20, 'WITHVALUES')  -- of outboxes that are gone
for place = 1, #some, 2 do
  local at = tonumber(string.match(some[place + 1], ' (%d+)$') or 0)
  if some[place] ~= source and at < now - KEPT_SECONDS then call('HDEL', ledger, some[place]) end
end
return {known, sequence}
