-- Read messages of a queue without taking them, from a place on, or from behind a message that was read before: others may
-- have taken messages meanwhile, so its place may have changed.
--
-- WITH types: wrong_type
-- WITH sampling: several saw
-- WITH relocation: leaving gone
-- WITH numbers: whole MAX_ID
-- KEYS metadata  hash    what the queue is; an error if it and the messages are missing
-- KEYS messages  list    id, body, id, body, ... (oldest at the head), ids ascending
-- KEYS msgid     string  the last id that was given; if it is below `last`, ids have begun anew and all is read
-- ARGV index     the place to read from, from 0 on
-- ARGV last      id of the message before that place, as read before; 0 if none was
-- ARGV digest    SHA-1 of that message's body; another body means that ids have begun anew; empty if not to compare
-- ARGV most      maximum number of messages to read
-- ARGV bytes     read no more once they have this many bytes together
-- Returns the place of the first message, how many are behind the last one, then lists of several, id and body of
-- each. Run twice: the same again, or what has come.
local call = redis.call
local refused = wrong_type({hash = {metadata}, list = {messages}, string = {msgid}}) or leaving(metadata)
if refused then return refused end
index, last, most, bytes = tonumber(index), tonumber(last), tonumber(most), tonumber(bytes)
local count = math.floor(call('LLEN', messages) / 2)
if count == 0 then
  refused = gone(metadata)
  if refused then return refused end
end
local given = whole(call('GET', msgid) or '0', MAX_ID)
if given and given < last then index, last = 0, 0 end
local function id_at(place) return whole(call('LINDEX', messages, 2 * place), MAX_ID) or 0 end
if last > 0 and not (index >= 1 and index <= count and id_at(index - 1) == last) then
  local low, high = 0, count  -- the first place with a larger id
  while low < high do
    local middle = math.floor((low + high) / 2)
    if id_at(middle) > last then high = middle else low = middle + 1 end
  end
  index = low
end
if digest ~= '' and index > 0 and id_at(index - 1) == last then
  if redis.sha1hex(call('LINDEX', messages, 2 * index - 1)) ~= digest then index = 0 end
end
local found, next_one = {index, 0}, index
most = math.min(most, count - index)
local many = several(messages, index, most, bytes)
while many > 0 do
  local words = call('LRANGE', messages, 2 * next_one, 2 * (next_one + many) - 1)
  saw(words)
  found[#found + 1], next_one = words, next_one + many
  many = several(messages, next_one, most - (next_one - index), bytes)
end
found[2] = count - next_one
return found
