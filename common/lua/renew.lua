-- Keep a registration alive. One that is gone stays gone: somebody has ordered a stop, or it has expired.
--
-- KEYS instance   hash   host pid started renewed renew service version waiting of one live instance
-- KEYS ids        list   ids of live instances, newest at the head
-- ARGV id         the instance's id
-- ARGV host       its host
-- ARGV pid        its process id; the registration of another process under the same id counts as gone
-- ARGV expire     how long the registration lives unless renewed (s)
-- ARGV renew      how often the instance will renew it (s)
-- ARGV capacity   maximum number of ids to list, 0 to leave the list alone; an instance that others have pushed out is listed again,
--                 as the oldest
-- ARGV trouble    what the instance waits for, as a text; empty if it does its work
-- Returns the time (s since the epoch) and the order in `reload`; false if the registration is gone. Run twice: the
-- second run renews again.
local found = redis.call('HMGET', instance, 'host', 'pid', 'reload', 'waiting')
if found[1] ~= host or found[2] ~= pid then return false end
redis.call('EXPIRE', instance, expire) -- first, since a full server refuses HSET unless a write came before
local now = redis.call('TIME')[1]
redis.call('HSET', instance, 'renewed', now, 'renew', renew)
if trouble ~= '' then redis.call('HSET', instance, 'waiting', trouble)
elseif found[4] then redis.call('HDEL', instance, 'waiting') end
if tonumber(capacity) > 0 and redis.pcall('LPOS', ids, id) == false and redis.call('LLEN', ids) < tonumber(capacity) then
  redis.call('RPUSH', ids, id)
end
return {tonumber(now), found[3]}
