-- Add the figures of a micro-batch for one window of time to the window's hash, once.
--
-- KEYS window  hash  `query batch`, the last one added; of all events `count attempts timeouts dead`; of each kind of
--                    event in each queue, `<event>:<queue>:<name>`, `count attempts` and if they took a time `sum max
--                    p50 p95 p99` (s) `histo0 ... histo100 buckets`
-- ARGV query   the id of the query, as its checkpoint has it
-- ARGV batch   the number of the micro-batch
-- ARGV gone    when the hash expires (s since the epoch)
-- ARGV base    bucket k counts times up to base^k s
-- ARGV least   the bucket of times that count as 0
-- ARGV rows    JSON: objects with `name` (`<event>:<queue>`) `count attempts timeouts dead timed micros max histogram buckets`
-- Returns 1, or 0 if the batch was added before. Run twice: the second run adds nothing.
local call, number = redis.call, tonumber
local known = call('HMGET', window, 'query', 'batch')
if known[1] == query and number(known[2]) >= number(batch) then return 0 end
base, least = number(base), number(least)

local function merged(written, added)
  local counts, places, total = {}, {}, 0
  for place, count in string.gmatch(written, '(%-?%d+)=(%d+)') do counts[number(place)] = number(count) end
  for place, count in pairs(added) do counts[number(place)] = (counts[number(place)] or 0) + count end
  for place, count in pairs(counts) do
    places[#places + 1], total = place, total + count
  end
  table.sort(places)
  return counts, places, total
end

local function percentile(share, counts, places, total, highest)
  local seen, wanted = 0, math.ceil(total * share)
  for _, place in ipairs(places) do
    seen = seen + counts[place]
    if seen >= wanted then
      return string.format('%.6f', place == least and 0 or math.min(base ^ (place - 0.5), highest))
    end
  end
end

local function add_times(name, row)
  local sum, max, buckets = name .. ':sum', name .. ':max', name .. ':buckets'
  local before = call('HMGET', window, sum, max, buckets)
  local highest = math.max(number(before[2]) or 0, row.max)
  local counts, places, total = merged(before[3] or '', row.buckets)
  local micros = math.floor((number(before[1]) or 0) * 1e6 + 0.5) + row.micros
  local words = {}
  for place, bucket in ipairs(places) do words[place] = bucket .. '=' .. string.format('%d', counts[bucket]) end
  call('HSET', window, sum, string.format('%.6f', micros / 1e6), max, string.format('%.6f', highest),
    buckets, table.concat(words, ' '), name .. ':p50', percentile(0.5, counts, places, total, highest),
    name .. ':p95', percentile(0.95, counts, places, total, highest),
    name .. ':p99', percentile(0.99, counts, places, total, highest))
  for place, count in ipairs(row.histogram) do
    if count > 0 then redis.pcall('HINCRBY', window, name .. ':histo' .. (place - 1) * 10, count) end
  end
end

for _, row in ipairs(cjson.decode(rows)) do
  for _, field in ipairs({'count', 'attempts', 'timeouts', 'dead'}) do
    if row[field] > 0 then redis.pcall('HINCRBY', window, field, row[field]) end
  end
  redis.pcall('HINCRBY', window, row.name .. ':count', row.count)
  if row.attempts > 0 then redis.pcall('HINCRBY', window, row.name .. ':attempts', row.attempts) end
  if row.timed > 0 then add_times(row.name, row) end
end
call('HSET', window, 'query', query, 'batch', batch)
call('EXPIREAT', window, gone)
return 1
