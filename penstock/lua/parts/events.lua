-- Part of the scripts that tell the life of messages: `report` collects what they do, `tell` writes all of it at the end.
--
-- KEYS events          stream  the life of messages, up to MOST events an entry: docs/keys.md
-- KEYS events_written  hash    metric: events told since counting began
-- KEYS events_marks    zset    one in about STEP entries of `events`, by the number of its first event
-- Returns nothing by itself. Run twice: as the script does that it is part of.
local MOST, STEP = 100, 1000
local told = {event = {}, id = {}, xid = {}, queue = {}, service = {}, attempt = {}, seconds = {}}
local events_told = 0

-- A line of a column: the two that mean something between lines are written in two.
local function one_line(word)
  if string.find(word, '\n', 1, true) or string.find(word, '\\', 1, true) then
    return (string.gsub(string.gsub(word, '\\', '\\\\'), '\n', '\\n'))
  end
  return word
end

local function report(event, id, xid, queue, service, attempt, seconds)
  events_told = events_told + 1
  told.event[events_told], told.id[events_told], told.xid[events_told] = event, id, one_line(xid)
  told.queue[events_told], told.service[events_told] = one_line(queue), one_line(service)
  told.attempt[events_told] = attempt
  told.seconds[events_told] = seconds and string.format('%.6f', seconds) or ''
end

-- One word where all are the same.
local function column(name, from, to)
  local words = told[name]
  for place = from + 1, to do
    if words[place] ~= words[from] then return table.concat(words, '\n', from, to) end
  end
  return words[from]
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
      'event', column('event', from, to), 'id', column('id', from, to), 'xid', column('xid', from, to), 'at', at,
      'queue', column('queue', from, to), 'service', column('service', from, to),
      'attempt', column('attempt', from, to), 'seconds', column('seconds', from, to))
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
