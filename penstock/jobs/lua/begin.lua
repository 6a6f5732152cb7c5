-- Note that attempts begin, for the audit and the history of a service.
--
-- WITH types: wrong_type
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- KEYS jobs       stream  jobs
-- KEYS under_way  zset    jobs that have begun and not ended (stream and entry), by when (s since the epoch)
-- KEYS registered hash    metric: jobs that have begun
-- KEYS taken      hash    metric: the same
-- KEYS delivered  hash    metric: attempts that have begun
-- ARGV group      whose attempts they are
-- ARGV consumer   who makes them
-- ARGV stream     name of the stream
-- ARGV service    the id of this instance
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV words...   three for each: entry, number of the attempt, job
-- Returns the entries that others have by now, or nobody: these do not begin. Run twice: attempts are counted twice, jobs
-- once.
local refused = wrong_type({stream = {jobs}, zset = {under_way}})
if refused then return refused end
local time = redis.call('TIME')
local now, stamp = time[1] + time[2] / 1e6, string.format('%d%03d', time[1], time[2] / 1000)
local lost, count, attempts = {}, 0, 0
for place = 1, #words, 3 do
  local entry, attempt, job = unpack(words, place, place + 2)
  local owned = redis.pcall('XPENDING', jobs, group, entry, entry, 1, consumer)[1] -- an error if the group is gone
  if owned and owned[4] == tonumber(attempt) then
    local id = stream .. ':' .. entry
    local waited = math.max(0, now - string.match(entry, '%d+') / 1000)
    attempts = attempts + 1
    if redis.call('ZADD', under_way, 'NX', now, id) == 1 then
      count = count + 1
      report('registered', id, job, stream, service, 0, waited)
    end
    report('delivered', id, job, stream, service, attempt, waited)
  else
    lost[#lost + 1] = entry
  end
end
tally(registered, 'count', count)
tally(taken, 'count', count)
tally(delivered, 'count', attempts)
write_events(stamp, tonumber(history))
write_tallies()
return lost
