-- Run commands that the caller lists.
--
-- GIVES replies_of_all
-- KEYS keys...    list   the keys of the commands, of any type, one for each command that has a key
-- ARGV words...   for each command: its name, 1 if it has a key, how many words follow the key, and these words
local EXPECTED = {H = 'hash', L = 'list', X = 'stream', Z = 'zset'}
local pcall = redis.pcall

local function reply_of(name, key, first, last)
  if first > last then
    if key then return pcall(name, key) end
    return pcall(name)
  end
  local command = {name, key}
  for word = first, last do command[#command + 1] = words[word] end
  return pcall(unpack(command, 1, #command))
end

local function failed(reply, why)
  return type(reply) == 'table' and reply.err and string.find(reply.err, why, 1, true)
end

-- Return the replies in order; for a key of another type, an error with its name. If a full server refuses a command,
-- call `make_room` with its key and try again.
local function replies_of_all(make_room)
  local replies, place, read = {}, 1, 0
  while words[place] do
    local name, key, first, last = words[place], nil, place + 3, place + 2 + words[place + 2]
    if words[place + 1] == '1' then
      read = read + 1
      key = keys[read]
    end
    local reply = reply_of(name, key, first, last)
    if make_room and failed(reply, 'OOM') then
      make_room(key)
      reply = reply_of(name, key, first, last)
    end
    if failed(reply, 'WRONGTYPE') then
      reply = redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. redis.call('TYPE', key).ok .. ', expected a '
        .. (EXPECTED[string.sub(name, 1, 1)] or 'string'))
    end
    replies[#replies + 1] = reply
    place = last + 1
  end
  return replies
end
