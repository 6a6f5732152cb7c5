-- Decide which of several lists will serve a message soonest. No function reads a key or the clock, so a simulation makes
-- the same decisions. A list's state has `seconds` (busy time for each message, a moving average), `items` (how
-- many were measured, 0 for none), `since` (busy without an end since then), `seen` (when the state was written), `length`
-- (messages to serve, after that), `turn` (the number of its last choice) and `share` (of what its weight gives it).
--
-- GIVES new_state read_state write_state measure expected costs dealer record
local ALPHA, WARM, FLOOR, CEILING = 0.05, 20, 1e-6, 3600
local FIELDS = {'seconds', 'items', 'since', 'seen', 'length', 'turn', 'share'}

local function new_state(place, places)
  return {seconds = 0, items = 0, since = 0, seen = 0, length = 0, turn = place - places, share = 0}
end

-- Return the state that `text` holds; a new one for false, and for a text that somebody else wrote.
local function read_state(text, place, places)
  local state = new_state(place, places)
  local words = text and {string.match(text, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')} or {}
  for number, name in ipairs(FIELDS) do state[name] = tonumber(words[number]) or state[name] end
  return state
end

local function write_state(state)
  return string.format('%.9g %d %.6f %.6f %d %d %.17g', state.seconds, state.items, state.since, state.seen, state.length,
    state.turn, state.share)
end

-- Learn from a list that has `length` messages to serve, fewer than it had: it was busy until then, or, if none is left,
-- until some moment since it was seen. Return true if the state has changed.
local function measure(state, length, now)
  local served = state.length - length
  if state.length == 0 or served < 1 then return false end
  local most = math.max(now - state.since, 0)
  local least = length > 0 and most or math.max(state.seen - state.since, 0)
  if length > 0 or state.items > 0 then
    local each = math.min(math.max(state.seconds, least / served), most / served)
    local items = state.items + served
    local weight = math.max(1 - (1 - ALPHA) ^ served, served / items)
    state.seconds = math.min(math.max(state.seconds + weight * (each - state.seconds), FLOOR), CEILING)
    state.items = math.min(items, WARM)
  end
  state.since, state.seen, state.length = now, now, length
  return true
end

-- Return the seconds to expect for one message, `others` being the mean of the other lists: that mean if nothing was
-- measured, and more and more so while the list is not used; more if it has been busy with one message for longer.
local function expected(state, length, now, others, forget)
  if state.items == 0 then return others end
  if length == 0 then return others + (state.seconds - others) * math.exp(math.min(state.seen - now, 0) / forget) end
  local busy = state.length > 0 and now - state.since or 0
  return state.seconds + (busy > state.seconds and ALPHA * (busy - state.seconds) or 0)
end

-- Return two tables by place: what the next message costs in a list, and by how much each message makes it dearer.
local function costs(policy, places, states, lengths, weights, now, forget)
  local cost, step, sum, known = {}, {}, 0, 0
  for _, place in ipairs(places) do
    if states[place].items > 0 then sum, known = sum + states[place].seconds, known + 1 end
  end
  for _, place in ipairs(places) do
    local state, each = states[place], 1
    if policy == 'expectedWait' then
      local own = state.items > 0 and 1 or 0
      local others = known > own and (sum - own * state.seconds) / (known - own) or own == 1 and state.seconds or 1
      each = expected(state, lengths[place], now, others, forget)
    end
    if policy == 'roundRobin' then cost[place], step[place] = 0, 0
    elseif policy == 'weighted' then cost[place], step[place] = state.share, 1 / weights[place]
    else cost[place], step[place] = (lengths[place] + 1) * each, each end
  end
  return cost, step
end

-- Return a function that appends each of `count` messages to the table of its list in `groups`, and adds to `fill`: to
-- the cheapest list, and of equals to the one whose last turn is longest ago. It keeps `cost` and `turn` up to date. The
-- lists are a heap; a message goes to its top, which then sinks, below lists of the same cost, too.
local function dealer(places, cost, step, turn)
  local heap, size, last = {}, #places, 0
  for at, place in ipairs(places) do heap[at], last = place, math.max(last, turn[place]) end
  table.sort(heap, function(one, other)
    return cost[one] < cost[other] or cost[one] == cost[other] and turn[one] < turn[other]
  end)
  return function(messages, count, groups, fill)
    for number = 1, count do
      local place = heap[1]
      local many, price = fill[place] + 1, cost[place] + step[place]
      groups[place][many], fill[place] = messages[number], many
      cost[place], turn[place], last = price, last + 1, last + 1
      local at, child = 1, 2
      while child <= size do
        local other = heap[child]
        local least = cost[other]
        if child < size then
          local right = heap[child + 1]
          local price_right = cost[right]
          if price_right < least or price_right == least and turn[right] < turn[other] then
            child, other, least = child + 1, right, price_right
          end
        end
        if price < least then break end
        heap[at], at = other, child
        child = 2 * at
      end
      heap[at] = place
    end
  end
end

-- Note that a list with `length` messages to serve got `count` more, and that `each` was expected. Unless what workers
-- have in hand is counted (`whole`), a message that comes to an empty list is in hand at once: it counts no more.
local function record(state, length, count, now, each, whole)
  if state.items > 0 and length == 0 then state.seconds = each end
  if state.length <= 0 or length == 0 then state.since = now end
  state.seen, state.length = now, length + count - (length == 0 and not whole and 1 or 0)
end
