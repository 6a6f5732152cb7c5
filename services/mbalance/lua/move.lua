-- Move the oldest messages, each to one of several lists: first what waits where no worker is alive, then `pending`, then
-- `source`. All or none. A list without a worker gets nothing.
--
-- FLAGS allow-oom
-- WITH lease
-- WITH types: length problem
-- WITH reading: several saw largest_read
-- WITH held: note enter keep
-- WITH tallies: tally write_tallies
-- WITH workers: each_list has_worker
-- WITH balance: read_state write_state measure costs dealer record
-- WITH rendezvous: hash_dealer
-- KEYS pending     list   what this instance has taken and not settled (oldest at the tail)
-- KEYS source      list   what publishers push to (newest at the head)
-- KEYS rates       hash   by list, its state: seconds items since seen length turn share
-- KEYS settled     hash   metric: messages that went to a list
-- KEYS delivered   hash   metric: the same, by list
-- KEYS rebalanced  hash   metric: messages that were taken back from a list, by list
-- KEYS lease?      hash   owner token expires of the one active replica
-- KEYS lists...    list   the lists to choose from
-- ARGV outs        how many lists there are to choose from
-- ARGV batch       maximum number of messages to move
-- ARGV bytes       maximum number of bytes to move; one message always goes
-- ARGV policy      `expectedWait`, `length`, `roundRobin`, `weighted` or `hash`
-- ARGV field       dotted path of the JSON field to hash; empty for the whole message
-- ARGV forget      seconds in which what was measured of an unused list fades
-- ARGV token       the lease's fencing token that the caller holds
-- ARGV registered  1 if a list without a registration has no worker that is alive, else 0
-- ARGV inhand      1 if the lists of what workers have in hand are given, else 0
-- ARGV groups...   for each list: its weight, and the names of what its workers have in hand, and of their registrations
-- Returns messages moved, messages that still wait, bytes of the largest message read, and how many lists have a worker.
-- Run twice: the second run moves the next batch.
local FLUSH = 4000
local call = redis.call
outs, batch, bytes, forget = tonumber(outs), tonumber(batch), tonumber(bytes), tonumber(forget)
local time = call('TIME')
local now, whole = time[1] + time[2] / 1e6, inhand == '1'

local here, behind = length('LLEN', pending), length('LLEN', source)
for _, key in ipairs({holds, missing, taken}) do length('HLEN', key) end
if problem then return problem end
note(pending, here)

local waiting, loads, weights, alive, dead, stranded = {}, {}, {}, {}, {}, 0
for place, weight, hands, registrations in each_list(outs, groups) do
  local list = lists[place]
  waiting[place] = length('LLEN', list)
  loads[place], weights[place] = waiting[place], weight
  for at = hands[1], hands[2] do
    local hand = groups[at]
    loads[place] = loads[place] + length('LLEN', hand)
  end
  if has_worker(groups, registrations, registered, now) then alive[#alive + 1] = place
  elseif waiting[place] > 0 then dead[#dead + 1], stranded = place, stranded + waiting[place] end
end
local total = here + behind + stranded
if total == 0 and not problem then return {0, 0, 0, #alive} end
for _, key in ipairs({rates, settled, delivered, rebalanced}) do length('HLEN', key) end
if problem then return problem end
if #alive == 0 then return {0, here + behind, 0, 0} end

local states, changed, cost, step, turn, deal = {}, {}, {}, {}, {}
if policy == 'hash' then
  deal = hash_dealer(alive, lists, field)
else
  local found = call('HMGET', rates, unpack(lists, 1, outs))
  for place = 1, outs do
    local state = read_state(found[place], place, outs)
    states[place], turn[place] = state, state.turn
    changed[place] = policy == 'expectedWait' and measure(state, loads[place], now)
  end
  cost, step = costs(policy, alive, states, loads, weights, now, forget)
  deal = dealer(alive, cost, step, turn)
end

local groups_of, fill, gone, hand = {}, {}, {}, 0
for place = 1, outs do groups_of[place], fill[place], gone[place] = {}, 0, 0 end
local function deliver()
  for _, place in ipairs(alive) do
    local list, many = lists[place], fill[place]
    local messages = groups_of[place]
    if many > 0 then call('LPUSH', list, unpack(messages, 1, many)) end
    gone[place], fill[place] = gone[place] + many, 0
  end
  hand = 0
end

-- Move messages of the list `key`, which has `left`, and return how many; `moved` were before.
local function move(key, left, moved)
  local first = moved
  local count = several(key, 0, math.min(left, batch - moved), bytes)
  while count > 0 do
    local messages = call('RPOP', key, count)
    saw(messages)
    deal(messages, count, groups_of, fill)
    moved, left, hand = moved + count, left - count, hand + count
    if hand >= FLUSH then deliver() end
    count = several(key, 0, math.min(left, batch - moved), bytes)
  end
  return moved - first
end

local moved, taken_back = 0, {}
for _, place in ipairs(dead) do
  taken_back[place] = move(lists[place], waiting[place], moved)
  moved = moved + taken_back[place]
end
local ours = move(pending, here, moved)
moved = moved + ours
moved = moved + move(source, behind, moved)
deliver()

local texts = {}
local function keep_state(place)
  texts[#texts + 1], texts[#texts + 2] = lists[place], write_state(states[place])
end
if policy ~= 'hash' then
  local least = policy == 'weighted' and cost[alive[1]] or 0
  for _, place in ipairs(alive) do least = math.min(least, cost[place]) end
  for _, place in ipairs(alive) do
    local state = states[place]
    if policy ~= 'expectedWait' then state.length = 0
    elseif gone[place] > 0 then record(state, loads[place], gone[place], now, step[place], whole) end
    state.turn = turn[place]
    if policy == 'weighted' then state.share = cost[place] - least end
    if gone[place] > 0 or changed[place] or least > 0 then keep_state(place) end
  end
  for place, count in pairs(taken_back) do
    states[place].length, states[place].seen = loads[place] - count, now
    keep_state(place)
  end
  call('HSET', rates, unpack(texts, 1, #texts))
end

keep(pending, here, here - ours)
enter(moved - ours)
for _, place in ipairs(alive) do
  tally(taken, lists[place], gone[place])
  tally(delivered, lists[place], gone[place])
end
for place, count in pairs(taken_back) do
  tally(rebalanced, lists[place], count)
  tally(rebalanced, 'count', count)
end
tally(settled, 'count', moved)
tally(delivered, 'count', moved)
write_tallies()
return {moved, total - moved, largest_read, #alive}
