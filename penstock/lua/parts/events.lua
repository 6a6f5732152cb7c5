-- Part of the scripts that tell the life of messages: `report` collects what they do, `tell` writes all of it at the end.
--
-- KEYS events          stream  the life of messages, up to MOST events an entry: docs/keys.md
-- KEYS events_written  hash    metric: events told since counting began
-- KEYS events_marks    zset    one in about STEP entries of `events`, by the number of its first event
-- Returns nothing by itself. Run twice: as the script does that it is part of.
local MOST, STEP = 100, 1000
local events_told, find = 0, string.find
local names, ids_told, xids, queues, services, attempts_told, times = {}, {}, {}, {}, {}, {}, {}

-- A line of a column: the two that mean something between lines are written in two.
local function one_line(word)
  if find(word, '\n', 1, true) or find(word, '\\', 1, true) then
    return (string.gsub(string.gsub(word, '\\', '\\\\'), '\n', '\\n'))
  end
  return word
end

local function report(event, id, xid, queue, service, attempt, seconds)
  local place = events_told + 1
  events_told = place
  names[place], ids_told[place], xids[place] = event, id, one_line(xid)
  queues[place], services[place], attempts_told[place] = queue, service, attempt
  times[place] = seconds and string.format('%.6f', seconds) or ''
end

-- One word where all are the same; of those that are not `safe` each is made one line first.
local function column(words, from, to, safe)
  local first, several = words[from], false
  for place = from + 1, to do
    if words[place] ~= first then several = true break end
  end
  if not several then return safe and first or one_line(first) end
  if not safe then
    for place = from, to do words[place] = one_line(words[place]) end
  end
  return table.concat(words, '\n', from, to)
end

-- Keep about `history` events; with none nothing is written.
local function tell(at, history)
  if events_told == 0 or history == 0 then return end
  local total = redis.pcall('HINCRBY', events_written, 'count', events_told)
  if type(total) ~= 'number' then total = events_told end
  local step = math.min(math.max(math.floor(history / 10), 1), STEP)
  for from = 1, events_told, MOST do
    local to = math.min(from + MOST - 1, events_told)
    local first, last = total - events_told + from, total - events_told + to
    local entry = redis.call('XADD', events, '*', 'first', string.format('%d', first), 'count', to - from + 1,
      'event', column(names, from, to, true), 'id', column(ids_told, from, to, true),
      'xid', column(xids, from, to, true), 'at', at, 'queue', column(queues, from, to),
      'service', column(services, from, to), 'attempt', column(attempts_told, from, to, true),
      'seconds', column(times, from, to, true))
    if math.floor((first - 1) / step) < math.floor(last / step) then
      redis.call('ZADD', events_marks, first, entry)
      local kept = redis.call('ZREVRANGEBYSCORE', events_marks, last - history + 1, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if kept[1] then
        redis.call('XTRIM', events, 'MINID', kept[1])
        redis.call('ZREMRANGEBYSCORE', events_marks, '-inf', '(' .. kept[2])
      end
    end
  end
end
