-- Move messages of a list that was renamed to the new one, and with the last ones the counts of the old name.
--
-- If they are older, the shorter list goes to the end of the longer one: at any time the messages in the old list are
-- older than those in the new one.
--
-- WITH types: wrong_type
-- WITH moving: move
-- KEYS former       list   the old name
-- KEYS present      list   the new name
-- KEYS notes        hash   by list that has changed, what has become of it
-- KEYS counters...  hash   four of each service that fills the list: taken delivered dead dropped
-- ARGV noted        the note of `former` as the caller knows it
-- ARGV settled      its note once all are moved
-- ARGV older        1 if the messages of `former` are older than those of `present`, 0 if they are younger
-- ARGV most         maximum number of messages to move
-- ARGV bytes        move no more once they have this many bytes together
-- Returns how many messages `former` has less, and 1 if some are left, else 0; false if the note is another one. Run
-- twice: the second run moves those that are left, or finds another note.
local call = redis.call
local refused = wrong_type({list = {former, present}, hash = {notes, unpack(counters, 1, #counters)}})
if refused then return refused end
if call('HGET', notes, former) ~= noted then return false end

local old, new = call('LLEN', former), call('LLEN', present)
local moved
most, bytes = tonumber(most), tonumber(bytes)
if older == '0' then
  moved = move(former, present, 'RIGHT', 'LEFT', most, bytes)
elseif old <= new then
  moved = move(former, present, 'LEFT', 'RIGHT', most, bytes)
else
  moved = -move(present, former, 'RIGHT', 'LEFT', most, bytes)
  if -moved == new then
    call('RENAME', former, present)
    moved = old
  end
end
if call('EXISTS', former) == 1 then return {moved, 1} end
call('HSET', notes, former, settled)

-- A list cannot be owed more than the service has taken: counts of messages that both lists got stay as they are.
for place = 1, #counters, 4 do
  local taken, delivered, dead, dropped = counters[place], counters[place + 1], counters[place + 2], counters[place + 3]
  local all = tonumber(call('HGET', taken, 'count') or 0) or 0
  local owed = tonumber(call('HGET', taken, former) or 0) or 0
  if owed > 0 and owed + (tonumber(call('HGET', taken, present) or 0) or 0) <= all then
    for _, key in ipairs({taken, delivered, dead, dropped}) do
      local count = call('HGET', key, former)
      if count and type(redis.pcall('HINCRBY', key, present, count)) == 'number' then call('HDEL', key, former) end
    end
  end
end
return {moved, 0}
