-- Count a micro-batch that is in the archive, once.
--
-- KEYS metric     hash  metric: `count malformed late batches`, of all; `query batch`, the last one counted; `at rate`
-- ARGV query      the id of the query, as its checkpoint has it
-- ARGV batch      the number of the micro-batch
-- ARGV events     how many events were in it
-- ARGV malformed  how many entries of it were no events
-- ARGV late       how many events belong to a window that was over
-- ARGV seconds    how long it took (s)
-- Returns 1, or 0 if it has been counted before. Run twice: the second run counts nothing.
local call = redis.call
local known = call('HMGET', metric, 'query', 'batch')
if known[1] == query and tonumber(known[2]) >= tonumber(batch) then return 0 end
redis.pcall('HINCRBY', metric, 'count', events)
redis.pcall('HINCRBY', metric, 'malformed', malformed)
redis.pcall('HINCRBY', metric, 'late', late)
redis.pcall('HINCRBY', metric, 'batches', 1)
call('HSET', metric, 'query', query, 'batch', batch, 'at', call('TIME')[1],
  'rate', string.format('%.0f', events / math.max(seconds, 0.001)))
return 1
