-- Leave the registry.
--
-- KEYS instance   hash   the registration
-- KEYS ids        list   ids of live instances
-- ARGV id         the instance's id
-- ARGV host       the instance's host
-- ARGV pid        its process id; the registration of another process under the same id stays
-- Returns how many registrations and how many ids were removed. Run twice: the second run finds nothing.
local owner = redis.call('HMGET', instance, 'host', 'pid')
if owner[1] and (owner[1] ~= host or owner[2] ~= pid) then return {0, 0} end
local listed = redis.pcall('LREM', ids, 0, id)
return {redis.call('DEL', instance), type(listed) == 'number' and listed or 0}
