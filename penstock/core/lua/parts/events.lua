-- Write events, the life of messages: `report` collects them, and `write_events` writes all at the end of the script. An
-- entry has a field `message` if one of its events was reported with its bytes, and `details` if one has any: JSON, in
-- one line without a backslash.
--
-- GIVES report write_events one_line
-- KEYS events?          stream  the life of messages, up to MOST events an entry: docs/keys.md; without it none is written
-- KEYS events_written? hash    metric: events written since counting began
-- KEYS events_marks?   zset    one in about STEP entries of `events`, by the number of its first event
local MOST, STEP, BYTES = 100, 1000, 262144
local events_told, find = 0, string.find
local bodies, details_told
local names, ids_told, xids, queues, services, attempts_told, times = {}, {}, {}, {}, {}, {}, {}

-- Return `word` as one line of a column: a newline or a backslash in it becomes two characters.
local function one_line(word)
  if find(word, '\n', 1, true) or find(word, '\\', 1, true) then
    return (string.gsub(string.gsub(word, '\\', '\\\\'), '\n', '\\n'))
  end
  return word
end

local function report(event, id, xid, queue, service, attempt, seconds, message, more)
  local place = events_told + 1
  events_told = place
  names[place], ids_told[place], xids[place] = event, id, one_line(xid)
  queues[place], services[place], attempts_told[place] = queue, service, attempt
  times[place] = seconds and string.format('%.6f', seconds) or ''
  if message then
    bodies = bodies or {}
    bodies[place] = message
  end
  if more then
    details_told = details_told or {}
    details_told[place] = more
  end
end

-- Return a column as text: one word if all are equal. Words that are not `safe` are made one line each.
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

-- Return the last event of the entry that begins with `from`: MOST events, or fewer with messages of BYTES at most.
local function last_of(from)
  local to, size = math.min(from + MOST - 1, events_told), 0
  for place = from, bodies and to or 0 do
    size = size + #bodies[place]
    if size > BYTES and place > from then return place - 1 end
  end
  return to
end

-- Return the fields that only some entries have, each with its column.
local function optional(from, to)
  local fields = bodies and {'message', column(bodies, from, to)} or {}
  if details_told then fields[#fields + 1], fields[#fields + 2] = 'details', column(details_told, from, to, true) end
  return unpack(fields, 1, #fields)
end

-- Write the events, at `at` (ms), and keep about `history` of all; write none if that is 0. A stream that takes no entry,
-- since it is at its last id, or a key of a wrong type does not stop the script: numbers in `events_written` show what is
-- missing.
local function write_events(at, history)
  if events_told == 0 or history == 0 or not events then return end
  local total = redis.pcall('HINCRBY', events_written, 'count', events_told)
  if type(total) ~= 'number' then total = events_told end
  local step = math.min(math.max(math.floor(history / 10), 1), STEP)
  for _, words in pairs({bodies, details_told}) do
    for place = 1, events_told do words[place] = words[place] or '' end
  end
  local from = 1
  while from <= events_told do
    local to = last_of(from)
    local first, last = total - events_told + from, total - events_told + to
    local entry = redis.pcall('XADD', events, '*', 'first', string.format('%d', first), 'count', to - from + 1,
      'event', column(names, from, to, true), 'id', column(ids_told, from, to, true),
      'xid', column(xids, from, to, true), 'at', at, 'queue', column(queues, from, to),
      'service', column(services, from, to), 'attempt', column(attempts_told, from, to, true),
      'seconds', column(times, from, to, true), optional(from, to))
    if type(entry) == 'string' and math.floor((first - 1) / step) < math.floor(last / step) then
      redis.pcall('ZADD', events_marks, first, entry)
      local kept = redis.pcall('ZREVRANGEBYSCORE', events_marks, last - history + 1, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
      if kept[1] then
        redis.pcall('XTRIM', events, 'MINID', kept[1])
        redis.pcall('ZREMRANGEBYSCORE', events_marks, '-inf', '(' .. kept[2])
      end
    end
    from = to + 1
  end
end
