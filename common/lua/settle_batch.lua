-- Settle the oldest messages of a pending list: push what becomes of them, count it, and remove them. All or none.
--
-- WITH lease
-- WITH types: wrong_type
-- WITH in_hand: take_read
-- WITH held: note keep
-- WITH tallies: tally write_tallies
-- WITH letters: push_letter
-- WITH events: report write_events one_line
-- KEYS pending     list   what this instance has taken and not settled (oldest at the tail)
-- KEYS letters?    list   dead letters, JSON
-- KEYS settled?    hash   metric: messages that left the pending list; by list, how many more than these were pushed
-- KEYS delivered?  hash   metric: messages pushed
-- KEYS dead?       hash   metric: dead letters
-- KEYS dropped?    hash   metric: messages that went nowhere
-- KEYS broken?     hash   metric: answers that say that a list is too long, by that list
-- KEYS lease?      hash   owner token expires of the one active replica
-- KEYS outs...     list   where messages go, and behind them the lists that messages name for their answers
-- ARGV token       the lease's fencing token that the caller holds
-- ARGV source      the list that they were taken from
-- ARGV history     maximum number of events to keep; 0 writes none
-- ARGV life        how long a list for answers lives (s) if an answer has created it
-- ARGV plan        JSON: `count` of messages to remove; `outs`, for each of outs what to push, oldest first; `dead`, pairs of
--                  a message and a reason; `dropped`, how many go nowhere; `events`, of each its name, id, xid and queue;
--                  `answers`, how many of outs, the last ones, are lists for answers; `broken`, the numbers for that metric.
--                  A message is its place among the oldest from 1 on, or below 0 its place among `made`
-- ARGV made...     messages that the caller has made
-- Returns 1, or 0 if the pending list has changed and nothing was done. Run twice: the second run does nothing.
local PIECE = 1000
local call = redis.call
plan = cjson.decode(plan)
local lists = #outs - plan.answers
local refused = wrong_type({list = {unpack(outs, 1, lists)}}) or wrong_type({list = {pending, letters}, stream = {events},
  zset = {events_marks}, hash = {holds, missing, taken, settled, delivered, dead, dropped, broken, events_written}})
if refused then return refused end

-- Nobody but its reader can mend a list for answers, and no other message waits for that.
local answered = 0
for number, out in ipairs(outs) do
  local kind = number > lists and call('TYPE', out).ok
  if kind == 'list' or kind == 'none' then
    answered = answered + #plan.outs[number]
  elseif kind then
    for _, place in ipairs(plan.outs[number]) do plan.dead[#plan.dead + 1] = {place, 'badAnswer'} end
    plan.outs[number] = {}
  end
end

-- A server whose memory is full refuses only a script's first write: meet that here, unless messages merely move.
local pushed = #plan.dead
for _, places in ipairs(plan.outs) do pushed = pushed + #places end
if #made > 0 or #plan.dead > 0 or pushed > plan.count then
  local full = redis.pcall('LMOVE', pending, pending, 'RIGHT', 'RIGHT')
  if type(full) == 'table' then return full end
end
local messages = take_read(plan.count)
if not messages then return 0 end
local function message_at(place) return place > 0 and messages[place] or made[-place] end
note(pending, held)
keep(pending, held, held - plan.count)

for number, out in ipairs(outs) do
  local places, held_now = plan.outs[number], 0
  for first = 1, #places, PIECE do
    local piece = {}
    for place = first, math.min(first + PIECE - 1, #places) do piece[#piece + 1] = message_at(places[place]) end
    held_now = call('LPUSH', out, unpack(piece, 1, #piece))
  end
  if number > lists and held_now > 0 and held_now == #places then call('EXPIRE', out, life) end
end
local time = call('TIME')
local at = time[1] * 1000 + math.floor(time[2] / 1000)
for _, letter in ipairs(plan.dead) do
  push_letter({message = message_at(letter[1]), reason = letter[2], source = source, attempts = 1, at = at})
end

if taken then
  tally(settled, 'count', plan.count)
  for number = 1, lists do
    local out = outs[number]
    tally(taken, out, #plan.outs[number])
    tally(delivered, out, #plan.outs[number])
    tally(delivered, 'count', #plan.outs[number])
    tally(settled, out, math.max(#plan.outs[number] - plan.count, 0))
  end
  tally(taken, source, #plan.dead + plan.dropped + answered)
  for metric, number in pairs({[dead] = #plan.dead, [dropped] = plan.dropped, [delivered] = answered}) do
    tally(metric, source, number)
    tally(metric, 'count', number)
  end
  for list, number in pairs(plan.broken) do
    tally(broken, list, number)
    tally(broken, 'count', number)
  end
  write_tallies()
end
for _, event in ipairs(plan.events) do report(one_line(event[1]), one_line(event[2]), event[3], event[4], '', '') end
write_events(at, tonumber(history))
return 1
