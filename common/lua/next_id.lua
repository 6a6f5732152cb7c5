-- Give the next id to an instance.
--
-- FLAGS allow-oom
-- KEYS counter   string   counter of instances
-- Returns the id. Run twice: the second run gives another one.
return redis.call('INCR', counter)
