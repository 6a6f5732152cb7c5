-- Read messages from the old end of a list without a change of it.
--
-- WITH reading: several saw bytes_read
-- KEYS source  list   what publishers push to (newest at the head)
-- ARGV older   how many of the oldest to skip
-- ARGV known   how many of those that follow the caller has read before; they and one more are read whatever their sizes
-- ARGV batch   maximum number of messages to return
-- ARGV bytes   return no more once they have this many bytes together
-- Returns the messages, oldest first. Run twice: the same again.
local call, found = redis.call, {}
older, known, batch, bytes = tonumber(older), tonumber(known), tonumber(batch), tonumber(bytes)
local left = math.min(call('LLEN', source) - older, batch)

local function following()
  if left < 1 then return 0 end
  if #found < known then return bytes_read < bytes and math.min(unseen, known - #found, left) or 0 end
  return #found == known and 1 or several(source, older, left, bytes)
end

local count = following()
while count > 0 do
  local messages = call('LRANGE', source, -older - count, -older - 1)
  saw(messages)
  for place = count, 1, -1 do found[#found + 1] = messages[place] end
  older, left = older + count, left - count
  count = following()
end
return found
