-- Take the messages that follow those in transit, oldest first: those of `pending` that were not sent yet, else more of
-- `source`, which go to `pending`.
--
-- FLAGS allow-oom
-- WITH lease
-- WITH types: length problem
-- WITH reading: several take saw largest_read bytes_read SMALL
-- WITH held: note enter keep
-- KEYS pending  list   taken and not settled (oldest at the tail)
-- KEYS source   list   what publishers push to (newest at the head)
-- KEYS state    hash   `source`, the source id for the other server, and `sequence`, the number of the last settled message
-- KEYS lease?   hash   owner token expires of the one active replica
-- ARGV token    the lease's fencing token that the caller holds
-- ARGV who      the source id as the caller knows it
-- ARGV next     the number of the first message to return; the others follow
-- ARGV batch    upper bound on messages to return (with `settled`: exact count that the caller reads)
-- ARGV bytes    return no more once they have this many bytes together
-- ARGV whole    1 if all that waits may move to `pending` at once, which takes no time; 0 if only what is returned may
-- ARGV settled  `sequence` as the caller knows it, who reads the messages itself, by LRANGE in the same transaction, which
--               costs a quarter of their way through Lua; empty to return them. With `batch` 0 it only asks
-- ARGV most     the largest LRANGE the caller would issue next
-- Returns the messages, or 1 if the caller has read the right ones, else 0; and how many of those that follow it may read
-- by itself (a sample of them shows how large they are; -1: ask for it). False if the source id is another one, or
-- `pending` lacks some of those before `next`. Run twice: the same again, or more.
local PIECE, FEW, LIGHT, MANY_MORE, SAMPLES, STEP, ALONE = 1024, 20000, 4194304, 8, 256, 8, 4
local call = redis.call
local here = length('LLEN', pending)
for _, counter in pairs({holds, taken}) do length('HLEN', counter) end
if problem then return problem end
note(pending, here)

local counted, waiting = here, length('LLEN', source)
length('HLEN', state)
if problem then return problem end
local known = call('HMGET', state, 'source', 'sequence')
local sent = next - 1 - (known[2] or 0)
if known[1] ~= who then return false end
if sent < 0 or sent > here then return false end

-- Rename a backlog to `pending`, after moving the few messages of `pending` to it: each then costs a read, and no move.
batch, bytes = tonumber(batch), tonumber(bytes)
if whole == '1' and here - sent < batch and here <= FEW and here * MANY_MORE < waiting
    and (here == 0 or call('MEMORY', 'USAGE', pending, 'SAMPLES', 0) <= LIGHT) then
  for _ = 1, here, PIECE do call('RPUSH', source, unpack(call('LPOP', pending, PIECE))) end
  call('RENAME', source, pending)
  call('PERSIST', pending)
  here, waiting = here + waiting, 0
  note(pending, counted)
  enter(here - counted)
  keep(pending, counted, here)
  counted = here
end

-- One after a large message; more only after many small ones, and if those looked at are small, too.
local function ahead(before)
  local count = math.min(most, here - before)
  if unseen == 1 then return settled == '' and largest_read * ALONE < bytes and 0 or math.min(count, 1) end
  if settled == '' then return -math.min(count, 1) end
  count = math.min(count, math.floor(bytes / math.max(largest, 1)))
  if count < 1 then return 0 end
  local step = math.max(math.ceil(count / SAMPLES), STEP)
  math.randomseed(call('TIME')[2])
  for first = 1, count, step do
    local place = math.min(first + math.random(0, step - 1), count)
    saw({call('LINDEX', pending, -before - place)})
    if largest_read > SMALL or bytes_read >= bytes then return 0 end
  end
  return math.min(count, math.floor(bytes / math.max(largest, largest_read, 1)))
end

if settled ~= '' then
  local right = settled == (known[2] or '0') and sent + batch <= here
  return {right and 1 or 0, right and ahead(sent + batch) or 0}
end

local found = {}
local count = several(pending, sent, math.min(here - sent, batch), bytes)
while count > 0 do
  local before = sent + #found
  local messages = call('LRANGE', pending, -before - count, -before - 1)
  saw(messages)
  for place = count, 1, -1 do found[#found + 1] = messages[place] end
  count = several(pending, before + count, math.min(here - before - count, batch - #found), bytes)
end
if sent + #found >= here then
  take(source, pending, found, math.min(waiting, batch - #found), bytes)
  here = math.max(here, sent + #found)
end
enter(here - counted)
keep(pending, counted, here)
return {found, ahead(sent + #found)}
