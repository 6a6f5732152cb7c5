-- Remove dead letters permanently.
--
-- WITH events: report write_events one_line
-- WITH types: wrong_type
-- KEYS dead         list    dead letters (newest at the head)
-- KEYS buried       hash    metric: letters removed
-- ARGV offset       how many letters at the tail to leave alone
-- ARGV window       how many letters after those to search
-- ARGV mark         a word that is no letter
-- ARGV history      maximum number of events to keep; 0 for none
-- ARGV letters...   four words a letter, oldest first: its exact bytes, id (empty: it was never tracked, so there is no
--                   event), xid, attempts
-- Returns a number for each letter: 1 if it was removed, 0 if it was not found. Run twice: the second run finds none of
-- those that were removed.
local call = redis.call
local refused = wrong_type({list = {dead}, hash = {buried, events_written}, stream = {events}, zset = {events_marks}})
if refused then return refused end

local seen, places = call('LRANGE', dead, -(offset + window), -(offset + 1)), {}
for place, letter in ipairs(seen) do
  places[letter] = places[letter] or {}
  table.insert(places[letter], place)
end

-- This changes nothing, but a full server accepts it as the first write, and then all that follow: burying frees memory.
call('LTRIM', dead, 0, -1)

local time, outcomes, gone = call('TIME'), {}, 0
local at = string.format('%d%03d', time[1], time[2] / 1000)
for number = 1, #letters / 4 do
  local letter, id, xid, attempts = unpack(letters, 4 * number - 3, 4 * number)
  if not places[letter] or #places[letter] == 0 then
    outcomes[number] = 0
  else
    outcomes[number], gone = 1, gone + 1
    call('LSET', dead, table.remove(places[letter]) - #seen - offset - 1, mark)
    if id ~= '' then report('buried', one_line(id), xid, '', '', one_line(attempts)) end
  end
end
if gone > 0 then
  -- The marked letters lie within the window: LREM from the nearer end does not look beyond it.
  local near = offset + #seen <= call('LLEN', dead) / 2 and -1 or 1
  call('LREM', dead, near * gone, mark)
  redis.pcall('HINCRBY', buried, 'count', gone)
  write_events(at, tonumber(history))
end
return outcomes
