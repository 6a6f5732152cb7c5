-- Note that jobs have ended that nobody settles: they were cancelled, or removed from their stream.
--
-- WITH types: wrong_type
-- WITH tallies: tally write_tallies
-- WITH events: report write_events
-- KEYS under_way  zset    jobs that have begun and not ended (stream and entry), by when (s since the epoch)
-- KEYS dead       hash    metric: jobs that ended without a result, by reason
-- ARGV stream     name of the stream
-- ARGV service    the id of this instance
-- ARGV history    maximum number of events to keep; 0 for none
-- ARGV words...   entries that have ended
-- Returns how many had begun and not ended. Run twice: none.
local refused = wrong_type({zset = {under_way}})
if refused then return refused end
local time = redis.call('TIME')
local stamp, count = string.format('%d%03d', time[1], time[2] / 1000), 0
for _, entry in ipairs(words) do
  local id = stream .. ':' .. entry
  if redis.call('ZREM', under_way, id) == 1 then
    count = count + 1
    report('dead', id, '', stream, service, 0)
  end
end
tally(dead, 'count', count)
tally(dead, 'cancelled', count)
write_events(stamp, tonumber(history))
write_tallies()
return count
