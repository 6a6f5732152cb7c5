-- Push messages of dead letters to the lists they came from, as publishers do; each letter at most once.
--
-- WITH events: report write_events one_line
-- WITH types: wrong_type
-- KEYS dead              list    dead letters (newest at the head)
-- KEYS revived           hash    metric: messages pushed again
-- KEYS destinations...   list    where messages go
-- ARGV offset            how many letters at the tail to leave alone
-- ARGV window            how many letters after those to search
-- ARGV mark              a word that is no letter
-- ARGV history           maximum number of events to keep; 0 for none
-- ARGV letters...        six words a letter, oldest first: its exact bytes, the message, the place of its destination,
--                        id (empty: it was never tracked, so there is no event), xid, attempts
-- Returns a number for each letter: 1 if its message was pushed, 0 if it was not found, -1 if its destination is no list.
-- Run twice: the second run finds none of those that were pushed.
local call = redis.call
local refused = wrong_type({list = {dead}, hash = {revived, events_written}, stream = {events}, zset = {events_marks}})
if refused then return refused end
local open = {}
for place, destination in ipairs(destinations) do open[place] = not wrong_type({list = {destination}}) end

local seen, places = call('LRANGE', dead, -(offset + window), -(offset + 1)), {}
for place, letter in ipairs(seen) do
  places[letter] = places[letter] or {}
  table.insert(places[letter], place)
end

local time, outcomes, back = call('TIME'), {}, 0
local at = string.format('%d%03d', time[1], time[2] / 1000)
for number = 1, #letters / 6 do
  local letter, message, place, id, xid, attempts = unpack(letters, 6 * number - 5, 6 * number)
  local destination = destinations[tonumber(place)]
  if not places[letter] or #places[letter] == 0 then
    outcomes[number] = 0
  elseif not open[tonumber(place)] then
    outcomes[number] = -1
  else
    outcomes[number], back = 1, back + 1
    call('LSET', dead, table.remove(places[letter]) - #seen - offset - 1, mark)
    call('LPUSH', destination, message)
    if id ~= '' then report('revived', one_line(id), xid, destination, '', one_line(attempts)) end
  end
end
if back > 0 then
  -- The marked letters lie within the window: LREM from the nearer end does not look beyond it.
  local near = offset + #seen <= call('LLEN', dead) / 2 and -1 or 1
  call('LREM', dead, near * back, mark)
  redis.pcall('HINCRBY', revived, 'count', back)
  write_events(at, tonumber(history))
end
return outcomes
