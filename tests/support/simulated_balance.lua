-- Simulate lists with one worker each on a virtual clock; the functions of `balance.lua` decide, as in mbalance.
--
-- WITH balance: new_state measure costs dealer record
-- ARGV policy    `expectedWait` or `length`
-- ARGV seed      of the random numbers
-- ARGV arrivals  how many messages to simulate; they come at random times (Poisson)
-- ARGV load      arrivals a second over what all workers can do
-- ARGV whole     1 if what workers have in hand is counted
-- ARGV slowed    from halfway on, the first worker has its rate divided by this
-- ARGV rates...  messages a second of each worker; each takes a random time (exponential)
-- Returns the median and the 99th percentile of the microseconds from arrival to end, and the messages of each list.
-- Run twice: the same again.
math.randomseed(seed)
whole, arrivals, slowed = whole == '1', tonumber(arrivals), tonumber(slowed)
local places, states, weights, queues, capacity = {}, {}, {}, {}, 0
for place = 1, #rates do
  capacity = capacity + rates[place]
  places[place], states[place], weights[place] = place, new_state(place, #rates), 1
  queues[place] = {first = 1, last = 0, free = 0, count = 0}
end
local function random(rate) return -math.log(1 - math.random()) / rate end

local function length(queue, now)
  while queue.first <= queue.last and queue[queue.first] <= now do
    queue[queue.first], queue.first = nil, queue.first + 1
  end
  local count = queue.last - queue.first + 1
  return whole and count or math.max(count - 1, 0)
end

local now, times = 1e6, {}
for number = 1, arrivals do
  now = now + random(capacity * load)
  local lengths, turn = {}, {}
  for place = 1, #rates do
    lengths[place], turn[place] = length(queues[place], now), states[place].turn
    measure(states[place], lengths[place], now)
  end
  local cost, step = costs(policy, places, states, lengths, weights, now, 60)
  local groups, fill, place = {}, {}, 1
  for each = 1, #rates do groups[each], fill[each] = {}, 0 end
  dealer(places, cost, step, turn)({'message'}, 1, groups, fill)
  while fill[place] == 0 do place = place + 1 end
  record(states[place], lengths[place], 1, now, step[place], whole)
  states[place].turn = turn[place]
  local queue = queues[place]
  local rate = place == 1 and number > arrivals / 2 and rates[1] / slowed or rates[place]
  queue.free = math.max(queue.free, now) + random(rate)
  queue.last, queue.count = queue.last + 1, queue.count + 1
  queue[queue.last] = queue.free
  times[number] = queue.free - now
end
table.sort(times)
local counts = {}
for place = 1, #rates do counts[place] = queues[place].count end
return {math.floor(times[math.ceil(arrivals * 0.5)] * 1e6), math.floor(times[math.ceil(arrivals * 0.99)] * 1e6), counts}
