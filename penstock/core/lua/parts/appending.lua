-- Append messages to a queue of a bus, and tell its consumers.
--
-- USES countable metadata messages msgid toack channel bodies
-- GIVES room_for append

local WRITTEN_PLAIN = 1e8

-- Return how many messages there is room for, or an error; it writes nothing. `ttl` is nil if the queue does not exist.
local function room_for(ttl, maxsize)
  if not ttl or ttl < 1 then return redis.error_reply('GONE the queue does not exist (any more): attach to it') end
  local many = #bodies
  maxsize = tonumber(maxsize or 0) or 0
  if maxsize > 0 then many = math.min(many, math.max(0, math.ceil(maxsize - redis.call('LLEN', messages) / 2))) end
  if many > 0 and not countable(redis.call('GET', msgid), many) then return redis.error_reply('WRONGTYPE ' .. msgid .. ' holds no id of a message') end
  return many
end

-- Append as many messages as `room_for` has returned. Return the id of the first, and how many. The caller has checked the
-- keys. If somebody listens to `direct`, they get the messages, and `channel` hears nothing.
local function append(ttl, many, direct)
  local call = redis.call
  if many == 0 then return {0, 0} end
  local first = call('INCRBY', msgid, many) - many + 1
  local pairs_ = {}
  -- The numbers are exact up to 2^53. Redis 7.2 writes round ones from that number on as 1e+8; to format all takes half as long again.
  for place = 1, many do
    local id = first + place - 1
    pairs_[2 * place - 1], pairs_[2 * place] = id < WRITTEN_PLAIN and id or string.format('%.0f', id), bodies[place]
  end
  call('RPUSH', messages, unpack(pairs_, 1, 2 * many))
  local left = toack and -1 or call('PTTL', metadata)
  -- busmq writes the metadata first, and its ttl in a second command.
  if left < 0 then left = 1000 * ttl end
  for _, key in ipairs({metadata, messages, msgid, toack}) do call('PEXPIRE', key, string.format('%d', left)) end
  local heard = 0
  if direct ~= '' then
    heard = call('PUBLISH', direct, string.format('[%.0f,', first) .. table.concat(bodies, ',', 1, many) .. ']')
  end
  if heard == 0 then call('PUBLISH', channel, string.format('%.0f', first + many - 1)) end
  return {first, many}
end
