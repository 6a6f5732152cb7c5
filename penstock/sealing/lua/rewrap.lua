-- Replace wrapped data keys of an owner by the same keys wrapped anew.
--
-- WITH types: wrong_type
-- KEYS wrapped    hash  wrapped data keys of the owner by epoch, and `epoch made sealed forgotten`
-- ARGV changes... three words a key: its epoch, what it was and what it shall be
-- Returns how many were replaced; one that has changed or was deleted stays so. Run twice: the second run replaces none.
local call = redis.call
local refused = wrong_type({hash = {wrapped}})
if refused then return refused end
local replaced = 0
for place = 1, #changes, 3 do
  local epoch, before, after = unpack(changes, place, place + 2)
  if call('HGET', wrapped, epoch) == before then
    call('HSET', wrapped, epoch, after)
    replaced = replaced + 1
  end
end
return replaced
