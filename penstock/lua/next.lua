-- Take the messages that follow those on their way, oldest first: those of `pending` that nobody sent yet, else more of
-- `source`, which go to `pending`.
--
-- KEYS pending  list   taken and not settled (oldest at the tail)
-- KEYS source   list   what publishers push to (newest at the head)
-- KEYS state    hash   `source`, who we are to the other server, and `sequence`, the number of the last settled message
-- KEYS lease?   hash   owner token expires of the one active replica
-- ARGV token    the lease's fencing token that the caller holds
-- ARGV who      who the caller takes us for, as `source` says
-- ARGV next     the number of the first message to return; the others follow
-- ARGV batch    most messages to return
-- ARGV bytes    no more are returned once they reach this size together
-- Returns the messages; false where we are another, or `pending` lacks some of those before `next`. Run twice: the same again, or more.
local READ_AHEAD, PIECE = 128, 1024
local call, pcall = redis.call, redis.pcall
if lease and call('HGET', lease, 'token') ~= token then return redis.error_reply('FENCED ' .. lease) end

local problem
local function length(command, key, kind)
  local found = pcall(command, key)
  if type(found) == 'number' then return found end
  problem = redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. call('TYPE', key).ok .. ', expected a ' .. kind)
  return 0
end
local here, waiting = length('LLEN', pending, 'list'), length('LLEN', source, 'list')
length('HLEN', state, 'hash')
if problem then return problem end
local known = call('HMGET', state, 'source', 'sequence')
local sent = next - 1 - (known[2] or 0)
if known[1] ~= who then return false end
if sent < 0 or sent > here then return false end

local found, size, largest, most = {}, 0, tonumber(bytes), READ_AHEAD
while #found < tonumber(batch) and size < tonumber(bytes) do
  local count = math.min(most, math.max(math.floor((bytes - size) / largest), 1), batch - #found)
  local before, piece = sent + #found, nil
  if before < here then
    count = math.min(count, here - before)
    piece = call('LRANGE', pending, -before - count, -before - 1)
    for place = 1, math.floor(count / 2) do piece[place], piece[count + 1 - place] = piece[count + 1 - place], piece[place] end
  else
    piece = waiting > 0 and call('RPOP', source, count)
    if not piece then break end
    call('LPUSH', pending, unpack(piece, 1, #piece))
    here, waiting = here + #piece, waiting - #piece
  end
  largest, most = 1, math.min(2 * most, PIECE)
  for _, message in ipairs(piece) do
    if size >= tonumber(bytes) then break end
    found[#found + 1], size, largest = message, size + #message, math.max(largest, #message)
  end
end
return found
