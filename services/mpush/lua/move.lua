-- Move the oldest messages to every subscriber list: first those in `pending`, then those that wait in `source`. All or
-- none.
--
-- WITH lease
-- WITH types: length problem
-- WITH letters: push_letter
-- WITH reading: largest_read
-- WITH oldest: take_oldest
-- WITH held: note enter keep
-- KEYS pending         list   what this instance has taken and not settled (oldest at the tail)
-- KEYS source          list   what publishers push to (newest at the head)
-- KEYS settled?        hash   metric: messages that left the pending list, copied to all
-- KEYS delivered?      hash   metric: copies delivered and kept
-- KEYS lost?           hash   metric: copies given up, or sent to the dead letters
-- KEYS letters?        list   dead letters, JSON
-- KEYS lease?          hash   owner token expires of the one active replica
-- KEYS subscribers...  list   one per subscriber
-- ARGV batch           maximum number of messages to move
-- ARGV bytes           maximum number of bytes to move; one message always goes
-- ARGV limit           maximum number of messages a subscriber list may hold; 0 for no limit
-- ARGV overflow        what to do at the limit: `block`, `drop-oldest` or `dead`
-- ARGV token           the lease's fencing token that the caller holds
-- Returns messages moved, messages that still wait, bytes of the largest message read, and the list that blocks or false.
-- Run twice: the second run moves the next batch.
local call, pcall = redis.call, redis.pcall
batch, bytes, limit = tonumber(batch), tonumber(bytes), tonumber(limit)

local here, behind = length('LLEN', pending), length('LLEN', source)
if here + behind == 0 and not problem then return {0, 0, 0, false} end
if holds then length('HLEN', holds) length('HLEN', taken) end
if problem then return problem end
note(pending, here)

local waiting = here + behind
local most, full, gone, room = math.min(batch, waiting), false, {}, {}
for place, subscriber in ipairs(subscribers) do
  local held = length('LLEN', subscriber)
  gone[place], room[place] = 0, limit > 0 and math.max(limit - held, 0) or math.huge
  if overflow == 'block' and room[place] < most then most, full = room[place], subscriber end
end
if taken then length('HLEN', settled) length('HLEN', delivered) end
if lost then length('HLEN', lost) end
if letters then length('LLEN', letters) end
if problem then return problem end
if most == 0 then return {0, waiting, 0, full} end

local function bury(message, subscriber)
  local time = call('TIME')
  push_letter({message = message, reason = 'maxLength', queue = subscriber, attempts = 1,
    at = time[1] * 1000 + math.floor(time[2] / 1000)})
end

local function deliver(messages)
  for place, subscriber in ipairs(subscribers) do
    local fits = #messages
    if overflow == 'dead' and room[place] < fits then
      fits = room[place]
      for late = fits + 1, #messages do bury(messages[late], subscriber) end
      gone[place] = gone[place] + #messages - fits
    end
    if fits > 0 then call('LPUSH', subscriber, unpack(messages, 1, fits)) end
    room[place] = room[place] - fits
  end
end

-- Rotating a list in place changes nothing, but a full server refuses it. It checks that only before a script's first
-- write: from here on nothing can fail. A move to one list takes no memory: a pop of nothing
-- comes first, after which the server refuses no write.
if #subscribers > 1 or letters then
  local refused = pcall('LMOVE', pending, pending, 'RIGHT', 'RIGHT')
  if type(refused) == 'table' then return refused end
else
  call('RPOP', source, 0)
  note(pending, here)
end

local moved = take_oldest(here, most, bytes, deliver)

if overflow == 'drop-oldest' and limit > 0 then
  for place, subscriber in ipairs(subscribers) do
    gone[place] = math.max(call('LLEN', subscriber) - limit, 0)
    if gone[place] > 0 then call('LTRIM', subscriber, 0, limit - 1) end
  end
end

local left = math.max(here - moved, 0)
keep(pending, here, left)
enter(moved - (here - left))
-- A counter that is no number stays as it is, for the audit to report: messages come first.
if taken then
  local total = 0
  pcall('HINCRBY', settled, 'count', moved)
  for place, subscriber in ipairs(subscribers) do
    pcall('HINCRBY', taken, subscriber, moved)
    pcall('HINCRBY', delivered, subscriber, moved - gone[place])
    if gone[place] > 0 then pcall('HINCRBY', lost, subscriber, gone[place]) end
    total = total + gone[place]
  end
  pcall('HINCRBY', delivered, 'count', moved * #subscribers - total)
  if total > 0 then pcall('HINCRBY', lost, 'count', total) end
end
return {moved, waiting - moved, largest_read, full}
