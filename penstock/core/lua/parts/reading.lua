-- Read messages of unknown sizes: no command returns the size of a list element without reading it. So messages are read
-- one by one until they have `bytes`, that is at most `bytes` and one message. After many small ones several are read at
-- once if DRAWS of them are small, one at a random place of each part, since a fixed distance would miss large ones at the
-- same distance, and the last, since where large ones begin there are mostly more. So large messages among very many
-- small ones may exceed `bytes` by some, rarely by up to half of those read at once.
--
-- GIVES several take saw largest_read bytes_read SMALL
-- ARGV unseen    maximum number of messages to read at once: 1 unless the caller has read many small ones in a row
-- ARGV largest   bytes of the largest of those small ones; 0 if unknown
local SMALL, DRAWS = 8192, 4
local bytes_read, messages_read, largest_read = 0, 0, 0
unseen, largest = tonumber(unseen), tonumber(largest)
local drawn

-- Note the sizes of messages that were read.
local function saw(messages)
  local all, most, count = 0, largest_read, #messages
  for place = 1, count do
    local size = #messages[place]
    all = all + size
    if size > most then most = size end
  end
  bytes_read, messages_read, largest_read = bytes_read + all, messages_read + count, most
end

-- Return how many messages of the list `key` to read next, at most `most`, after the `before` oldest (newest if
-- `from_head`); 0 at the end.
local function several(key, before, most, bytes, from_head)
  if most < 1 or messages_read > 0 and bytes_read >= bytes then return 0 end
  if unseen == 1 or messages_read == 0 or largest_read > SMALL then return 1 end
  local known = math.max(largest, largest_read)
  local count, first = math.min(unseen, most, math.floor((bytes - bytes_read) / known)), 0
  if count < 2 then return 1 end
  local stride = math.ceil(count / DRAWS)
  drawn = drawn or math.randomseed(redis.call('TIME')[2]) or true
  while first <= count do
    local place = first == 0 and count or math.min(first + math.random(0, stride - 1), count)
    local size = #redis.call('LINDEX', key, from_head and before + place - 1 or -before - place)
    bytes_read, largest_read = bytes_read + size, math.max(largest_read, size)
    first = first == 0 and 1 or first + stride
    if size > known then known, count = size, math.min(count, math.floor((bytes - bytes_read) / size)) end
    if size > SMALL or count < 2 then return bytes_read < bytes and 1 or 0 end
  end
  return count
end

-- Move the oldest messages of the list `key` to the list `into`, and append them to the table `found`.
local function take(key, into, found, most, bytes)
  local count = several(key, 0, most, bytes)
  while count > 0 do
    local messages = count > 1 and redis.call('RPOP', key, count) or {redis.call('LMOVE', key, into, 'RIGHT', 'LEFT')}
    if count > 1 then redis.call('LPUSH', into, unpack(messages, 1, count)) end
    saw(messages)
    for place = 1, count do found[#found + 1] = messages[place] end
    most = most - count
    count = several(key, 0, most, bytes)
  end
end
