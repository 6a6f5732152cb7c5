-- Delete the segments of micro-batches that are finished.
--
-- WITH types: wrong_type
-- KEYS state        hash   `taken`, the number of the newest segment, and `done`, that of the newest one that is finished
-- KEYS segments...  list   the messages of a micro-batch
-- ARGV number       the number of the newest of them
-- Returns how many existed. Run twice: the second run finds none.
local call = redis.call
local refused = wrong_type({hash = {state}})
if refused then return refused end
local gone = 0
for _, key in ipairs(segments) do gone = gone + call('UNLINK', key) end
for place, known in ipairs(call('HMGET', state, 'taken', 'done')) do
  if (tonumber(known or 0) or 0) < tonumber(number) then call('HSET', state, place == 1 and 'taken' or 'done', number) end
end
return gone
