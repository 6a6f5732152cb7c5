-- Pause a stream: no consumer of ours begins a job of it. Also while the server is full, when it is needed most.
--
-- FLAGS allow-oom
-- KEYS paused   string  when the stream was paused (s since the epoch)
-- ARGV control  channel of those who consume the stream
-- Returns nothing. Run twice: as once.
local time = redis.call('TIME')
redis.call('SET', paused, string.format('%d.%03d', time[1], time[2] / 1000))
redis.call('PUBLISH', control, 'pause')
