-- Leave the registry.
--
-- KEYS instance   hash   the registration
-- KEYS ids        list   ids of live instances
-- ARGV id         the instance's id
-- Returns how many registrations and how many ids were removed. Run twice: the second run finds nothing.
return {redis.call('DEL', instance), redis.call('LREM', ids, 0, id)}
