-- Part of the scripts that do commands of the caller: `replies` are those to all of them, in order.
--
-- KEYS keys...    list   those that the commands are about, of any type, one for each command that has a key
-- ARGV words...   for each command: its name, 1 if it has a key, how many words follow the key, and these words
-- Returns nothing by itself; the reply of a key of another type is an error with its name. Run twice: does them again.
local EXPECTED = {H = 'hash', L = 'list', X = 'stream', Z = 'zset'}
local pcall = redis.pcall
local replies, place, read = {}, 1, 0

local function reply_of(name, key, first, last)
  if first > last then
    if key then return pcall(name, key) end
    return pcall(name)
  end
  local command = {name, key}
  for word = first, last do command[#command + 1] = words[word] end
  return pcall(unpack(command, 1, #command))
end

while words[place] do
  local name, key, last = words[place], nil, place + 2 + words[place + 2]
  if words[place + 1] == '1' then
    read = read + 1
    key = keys[read]
  end
  local reply = reply_of(name, key, place + 3, last)
  if type(reply) == 'table' and reply.err and string.find(reply.err, 'WRONGTYPE', 1, true) then
    reply = redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. redis.call('TYPE', key).ok .. ', expected a '
      .. (EXPECTED[string.sub(name, 1, 1)] or 'string'))
  end
  replies[#replies + 1] = reply
  place = last + 1
end
