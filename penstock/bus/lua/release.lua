-- Give up the lease on a queue.
--
-- FLAGS allow-oom
-- KEYS lease  string  who consumes alone
-- ARGV who    the caller
-- Returns 1, or 0 if another has it. Run twice: the second run finds nothing.
if redis.call('GET', lease) ~= who then return 0 end
return redis.call('DEL', lease)
