-- Answer an order to reload the settings, in the registration of the instance that got it.
--
-- FLAGS allow-oom
-- KEYS instance   hash   host pid and more of one live instance
-- ARGV host       the instance's host
-- ARGV pid        its process id; if the registration is gone or another process's, nothing is written
-- ARGV order      the value of `reload`, or `SIGHUP` and its number
-- ARGV refused    why the settings cannot be used; empty if they are in force
-- Returns 1, or 0 if the registration is gone. Run twice: the second run writes the same.
local owner = redis.call('HMGET', instance, 'host', 'pid')
if owner[1] ~= host or owner[2] ~= pid then return 0 end
if refused == '' then
  redis.call('HSET', instance, 'answered', order, 'reloaded', order)
  redis.call('HDEL', instance, 'refused')
else
  redis.call('HSET', instance, 'answered', order, 'refused', refused)
end
return 1
