-- Move messages from one list to another one by one, within a bound.
--
-- GIVES move

-- Move at most `most` messages from the end `from` of `key` to the end `to` of `into`, and none once they have `bytes`.
-- Return how many; add them to the table `found` if it is given.
local function move(key, into, from, to, most, bytes, found)
  local count, size = 0, 0
  while count < most and size < bytes do
    local message = redis.call('LMOVE', key, into, from, to)
    if not message then break end
    count, size = count + 1, size + #message
    if found then found[count] = message end
  end
  return count
end
