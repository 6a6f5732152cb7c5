-- Take a batch that the caller has read in a pending list, unless the list has changed since.
--
-- USES pending
-- GIVES take_read
-- ARGV held    how many messages were pending when the caller read them
-- ARGV digest  SHA-1 of the lengths of the oldest ones (`1, 20`) and the SHA-1 of each HASHED_AT_ONCE of them, to find out
--              whether they have changed; to hash all at once takes Lua twice as long
local HASHED_AT_ONCE = 16
held = tonumber(held)

-- Remove the `count` oldest messages and return them, oldest first. Return nil, and remove none, if the list has changed:
-- a call may come late, after its connection was cut.
local function take_read(count)
  if redis.call('LLEN', pending) ~= held then return nil end
  local messages, sizes, hashes = redis.call('RPOP', pending, count), {}, {}
  for place = 1, #messages do sizes[place] = #messages[place] end
  for first = 1, #messages, HASHED_AT_ONCE do
    local last = math.min(first + HASHED_AT_ONCE - 1, #messages)
    hashes[#hashes + 1] = redis.sha1hex(table.concat(messages, '', first, last))
  end
  if redis.sha1hex(table.concat(sizes, ', ') .. table.concat(hashes)) == digest then return messages end
  for place = #messages, 1, -1 do redis.call('RPUSH', pending, messages[place]) end
end
