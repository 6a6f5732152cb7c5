-- Count how often the delivery of a message has failed: a message of a list has no id, so its bytes are its name.
--
-- GIVES failures_of set_failures
-- KEYS failures   hash   failed deliveries of each message that was not handled since, by a SHA-1: of the message, or of
--                        PIECES pieces of a large one, which together have WHOLE bytes
local REMEMBERED, WHOLE, PIECES = 604800, 1048576, 256

local function digest(message)
  if #message <= WHOLE then return redis.sha1hex(message) end
  local parts, size = {#message}, WHOLE / PIECES
  for place = 0, PIECES - 1 do
    local first = math.floor(place * (#message - size) / (PIECES - 1))
    parts[#parts + 1] = string.sub(message, first + 1, first + size)
  end
  return redis.sha1hex(table.concat(parts, ' '))
end

local function failures_of(message)
  local count = tonumber(redis.call('HGET', failures, digest(message)))
  return count and count > 0 and count < 1e9 and count or 0
end

local function set_failures(message, count)
  if count == 0 then return redis.call('HDEL', failures, digest(message)) end
  redis.call('HSET', failures, digest(message), string.format('%d', count))
  redis.call('EXPIRE', failures, REMEMBERED)
end
