-- Pause a stream: no consumer of ours begins a job of it. Also while the server is full, when it is needed most.
--
-- FLAGS allow-oom
-- KEYS paused   string  when the stream was paused (s since the epoch)
-- ARGV at       the time now
-- ARGV control  channel of those who consume the stream
-- Returns nothing. Run twice: as once.
redis.call('SET', paused, at)
redis.call('PUBLISH', control, 'pause')
