-- Add jobs to a stream, each now or later, with their values: all or none.
--
-- WITH types: wrong_type
-- KEYS stream     stream  jobs
-- KEYS later?     zset    jobs that wait for their time, by that time (s since the epoch); without it all are sent now
-- KEYS keys...    string  values of all jobs
-- ARGV control    channel of those who consume the stream
-- ARGV words...   for each job: how many values it has; about how many jobs the stream keeps (empty: all); how long it
--   waits (s; 0: not at all); what makes one that waits different from all others; the fields of the entry, as JSON: an array
--   of texts; and three for each value: itself, how long it is kept (ms; 0: for ever), and the field of the entry that has
--   it, too (empty: none)
-- Returns for each the id of the entry, or the time (s since the epoch) of one that waits. Run twice: they are there twice.
local call = redis.call
local refused = wrong_type({stream = {stream}, zset = {later}})
if refused then return refused end
local found, place, at, now = {}, 1, 0, nil
if later then
  local time = call('TIME')
  now = time[1] + time[2] / 1e6
end
while place <= #words do
  local count, capped, delay, token, fields = unpack(words, place, place + 4)
  place = place + 5
  local decoded = cjson.decode(fields)
  for _ = 1, tonumber(count) do
    at = at + 1
    local key = keys[at]
    if words[place + 1] == '0' then
      call('SET', key, words[place])
    else
      call('SET', key, words[place], 'PX', words[place + 1])
    end
    if words[place + 2] ~= '' then
      decoded[#decoded + 1] = words[place + 2]
      decoded[#decoded + 1] = words[place]
    end
    place = place + 3
  end
  if tonumber(delay) > 0 then
    call('ZADD', later, now + delay, token .. ' ' .. fields)
    call('PUBLISH', control, 'due ' .. delay)
    found[#found + 1] = string.format('%.3f', now + delay)
  else
    if capped == '' then
      found[#found + 1] = call('XADD', stream, '*', unpack(decoded, 1, #decoded))
    else
      found[#found + 1] = call('XADD', stream, 'MAXLEN', '~', capped, '*', unpack(decoded, 1, #decoded))
    end
  end
end
return found
