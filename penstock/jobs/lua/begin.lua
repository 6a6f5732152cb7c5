-- Note that attempts begin, for the audit and the history of a service.
--
-- WITH types: wrong_type
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- KEYS under_way  zset    jobs that have begun and not ended (stream and entry), by when (s since the epoch)
-- KEYS registered hash    metric: jobs that have begun
-- KEYS taken      hash    metric: the same
-- KEYS delivered  hash    metric: attempts that have begun
-- ARGV stream     name of the stream
-- ARGV service    the id of this instance
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV words...   three for each: entry, number of the attempt, job
-- Returns how many had not begun before. Run twice: attempts are counted twice, jobs once.
local refused = wrong_type({zset = {under_way}})
if refused then return refused end
local time = redis.call('TIME')
local now, stamp = time[1] + time[2] / 1e6, string.format('%d%03d', time[1], time[2] / 1000)
local count = 0
for place = 1, #words, 3 do
  local entry, attempt, job = unpack(words, place, place + 2)
  local id = stream .. ':' .. entry
  local waited = math.max(0, now - string.match(entry, '%d+') / 1000)
  if redis.call('ZADD', under_way, 'NX', now, id) == 1 then
    count = count + 1
    report('registered', id, job, stream, service, 0, waited)
  end
  report('delivered', id, job, stream, service, attempt, waited)
end
tally(registered, 'count', count)
tally(taken, 'count', count)
tally(delivered, 'count', #words / 3)
write_events(stamp, tonumber(history))
write_tallies()
return count
