-- Part of the scripts that tell the life of messages: `report` collects what they do, `tell` writes all of it at the end.
-- Entries have a field `message` where one was reported with its bytes.
--
-- KEYS events          stream  the life of messages, up to MOST events an entry: docs/keys.md
-- KEYS events_written  hash    metric: events told since counting began
-- KEYS events_marks    zset    one in about STEP entries of `events`, by the number of its first event
-- Returns nothing by itself. Run twice: as the script does that it is part of.
local MOST, STEP, BYTES = 100, 1000, 262144
local events_told, find = 0, string.find
local bodies
local names, ids_told, xids, queues, services, attempts_told, times = {}, {}, {}, {}, {}, {}, {}

-- A line of a column: the two that mean something between lines are written in two.
local function one_line(word)
  if find(word, '\n', 1, true) or find(word, '\\', 1, true) then
    return (string.gsub(string.gsub(word, '\\', '\\\\'), '\n', '\\n'))
  end
  return word
end

local function report(event, id, xid, queue, service, attempt, seconds, message)
  local place = events_told + 1
  events_told = place
  names[place], ids_told[place], xids[place] = event, id, one_line(xid)
  queues[place], services[place], attempts_told[place] = queue, service, attempt
  times[place] = seconds and string.format('%.6f', seconds) or ''
  if message then
    bodies = bodies or {}
    bodies[place] = message
  end
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

-- The last event of an entry: MOST of them, fewer where their messages would have more than BYTES.
local function last_of(from)
  local to, size = math.min(from + MOST - 1, events_told), 0
  for place = from, bodies and to or 0 do
    size = size + #bodies[place]
    if size > BYTES and place > from then return place - 1 end
  end
  return to
end

local function message_of(from, to)
  if bodies then return 'message', column(bodies, from, to) end
end

-- Keep about `history` events; with none nothing is written.
local function tell(at, history)
  if events_told == 0 or history == 0 then return end
  local total = redis.pcall('HINCRBY', events_written, 'count', events_told)
  if type(total) ~= 'number' then total = events_told end
  local step = math.min(math.max(math.floor(history / 10), 1), STEP)
  for place = 1, bodies and events_told or 0 do bodies[place] = bodies[place] or '' end
  local from = 1
  while from <= events_told do
    local to = last_of(from)
    local first, last = total - events_told + from, total - events_told + to
    local entry = redis.call('XADD', events, '*', 'first', string.format('%d', first), 'count', to - from + 1,
      'event', column(names, from, to, true), 'id', column(ids_told, from, to, true),
      'xid', column(xids, from, to, true), 'at', at, 'queue', column(queues, from, to),
      'service', column(services, from, to), 'attempt', column(attempts_told, from, to, true),
      'seconds', column(times, from, to, true), message_of(from, to))
    if math.floor((first - 1) / step) < math.floor(last / step) then
      redis.call('ZADD', events_marks, first, entry)
      local kept = redis.call('ZREVRANGEBYSCORE', events_marks, last - history + 1, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if kept[1] then
        redis.call('XTRIM', events, 'MINID', kept[1])
        redis.call('ZREMRANGEBYSCORE', events_marks, '-inf', '(' .. kept[2])
      end
    end
    from = to + 1
  end
end
