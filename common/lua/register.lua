-- Add a new instance to the registry, unless its id is in use.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS instance   hash   host pid started renewed renew service version, and `process` and `lists`, of one live instance
-- KEYS ids        list   ids of live instances, newest at the head
-- ARGV id         the instance's id
-- ARGV host       its host
-- ARGV pid        its process id
-- ARGV service    the service's name
-- ARGV version    the version of Penstock
-- ARGV expire     how long the registration lives unless renewed (s)
-- ARGV renew      how often the instance will renew it (s)
-- ARGV capacity   maximum number of ids to list
-- ARGV process    which process of its machine it is, however often its id is used again; empty if that is not known
-- ARGV lists      the server of its lists, host:port/database, if that is another one; else empty
-- Returns when the instance started (s since the epoch), or 0 if the id is in use. Run twice: the second run is refused.
if redis.call('EXISTS', instance) == 1 then return 0 end
local refused = wrong_type({list = {ids}})
if refused then return refused end
local now = redis.call('TIME')[1]
redis.call('HSET', instance, 'host', host, 'pid', pid, 'started', now, 'renewed', now, 'renew', renew,
  'service', service, 'version', version)
if process ~= '' then redis.call('HSET', instance, 'process', process) end
if lists ~= '' then redis.call('HSET', instance, 'lists', lists) end
redis.call('EXPIRE', instance, expire)
redis.call('LPUSH', ids, id)
redis.call('LTRIM', ids, 0, capacity - 1)
return tonumber(now)
