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
-- ARGV batch    most messages to return; or just so many that the caller reads
-- ARGV bytes    no more are returned once they reach this size together
-- ARGV whole    1 where all that waits may go to `pending` at once, which takes no time; 0 where only what is returned may
-- ARGV settled  `sequence` as the caller knows it, who reads the messages itself, by LRANGE in the same transaction, which
--               costs a quarter of their way through Lua; empty where this shall return them
-- ARGV most     how many it would read so the next time, at most
-- Returns the messages, or 1 where the caller has read the right ones, else 0; and how many of those that follow it may
-- read by itself (a sample of them says how large they are). False where we are another, or `pending` lacks some of
-- those before `next`. Run twice: the same again, or more.
local READ_AHEAD, PIECE, FEW, MANY_MORE, SAMPLES = 128, 1024, 20000, 8, 16
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

-- A backlog becomes `pending` as it is, behind the few that are there: a message then costs one reading, and no move.
batch, bytes = tonumber(batch), tonumber(bytes)
if whole == '1' and here - sent < batch and here <= FEW and here * MANY_MORE < waiting then
  for _ = 1, here, PIECE do call('RPUSH', source, unpack(call('LPOP', pending, PIECE))) end
  call('RENAME', source, pending)
  call('PERSIST', pending)
  here, waiting = here + waiting, 0
end

local function ahead(before)
  local count = math.min(most, here - before)
  local largest = 1
  for place = before, before + count - 1, math.ceil(math.max(count, 1) / SAMPLES) do
    largest = math.max(largest, #call('LINDEX', pending, -place - 1))
  end
  return math.min(count, math.floor(bytes / largest))
end

if settled ~= '' then
  local right = settled == (known[2] or '0') and sent + batch <= here
  return {right and 1 or 0, right and ahead(sent + batch) or 0}
end

local found, taken, largest, limit = {}, 0, 1, READ_AHEAD
while #found < batch and taken < bytes do
  local count = math.min(limit, math.max(math.floor((bytes - taken) / math.max(largest, 1)), 1), batch - #found)
  local before = sent + #found
  local piece, from, to, step
  if before < here then
    piece = call('LRANGE', pending, -before - math.min(count, here - before), -before - 1)
    from, to, step = #piece, 1, -1
  else
    piece = waiting > 0 and call('RPOP', source, count)
    if not piece then break end
    call('LPUSH', pending, unpack(piece, 1, #piece))
    here, waiting = here + #piece, waiting - #piece
    from, to, step = 1, #piece, 1
  end
  largest, limit = 1, math.min(2 * limit, PIECE)
  for place = from, to, step do
    if taken >= bytes then break end
    local message = piece[place]
    found[#found + 1], taken, largest = message, taken + #message, math.max(largest, #message)
  end
end
return {found, ahead(sent + #found)}
