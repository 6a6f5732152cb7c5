-- Answer an order to read the settings anew, in the registration of the instance that was ordered.
--
-- FLAGS allow-oom
-- KEYS instance   hash   host pid and more of one live instance
-- ARGV host       where it runs
-- ARGV pid        its process: nothing is written into the registration of another one, or where there is none
-- ARGV order      the value of `reload`, or `SIGHUP` and its number
-- ARGV refused    why the settings cannot be used; empty where they are in force
-- Returns 1, or 0 where the registration is gone. Run twice: the second run writes the same.
local owner = redis.call('HMGET', instance, 'host', 'pid')
if owner[1] ~= host or owner[2] ~= pid then return 0 end
if refused == '' then
  redis.call('HSET', instance, 'answered', order, 'reloaded', order)
  redis.call('HDEL', instance, 'refused')
else
  redis.call('HSET', instance, 'answered', order, 'refused', refused)
end
return 1
