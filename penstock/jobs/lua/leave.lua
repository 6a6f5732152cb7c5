-- Remove a consumer that has nothing in hand from its group.
--
-- KEYS stream     stream  jobs
-- ARGV group      of the consumer
-- ARGV consumer   who leaves
-- Returns 1 if it was removed. Run twice: it is gone.
if redis.call('TYPE', stream).ok ~= 'stream' then return 0 end
if #redis.call('XPENDING', stream, group, '-', '+', 1, consumer) > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', stream, group, consumer)
return 1
