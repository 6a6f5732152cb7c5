-- Read messages that are held for a move.
--
-- KEYS held   list  id, body, id, body, ...
-- ARGV place  the place of the first message to read, from 0 on
-- ARGV most   maximum number of messages to read
-- ARGV bytes  read no more once they have this many bytes together
-- Returns id and body of each. Run twice: the same again.
local call = redis.call
place, most, bytes = tonumber(place), tonumber(most), tonumber(bytes)
local found, size, several, largest = {}, 0, 1, 1
while #found < 2 * most and size < bytes do
  local from = 2 * place + #found
  local some = call('LRANGE', held, from, from + 2 * math.min(several, most - #found / 2) - 1)
  if #some == 0 then break end
  for number = 1, #some do
    found[#found + 1] = some[number]
    size, largest = size + #some[number], math.max(largest, #some[number])
  end
  several = math.max(1, math.min(4 * several, math.floor((bytes - size) / largest)))
end
return found
