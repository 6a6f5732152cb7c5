-- Read the data keys of an owner, and count messages that were sealed with the newest.
--
-- Counting is best effort: a full server does not count, but still returns the keys.
--
-- WITH types: wrong_type
-- KEYS wrapped  hash  wrapped data keys of the owner by epoch, and `epoch made sealed forgotten`
-- ARGV epoch    the epoch with which the messages were sealed
-- ARGV sealed   how many were; 0 if none
-- Returns the time (s) and all fields of the hash. Run twice: the second run counts the messages again.
local call = redis.call
local refused = wrong_type({hash = {wrapped}})
if refused then return refused end
if tonumber(sealed) > 0 and call('HGET', wrapped, 'epoch') == epoch then
  redis.pcall('HINCRBY', wrapped, 'sealed', sealed)
end
return {call('TIME')[1], call('HGETALL', wrapped)}
