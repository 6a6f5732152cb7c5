-- Order a live instance to reload its settings; an order that comes too late creates no registration.
--
-- FLAGS allow-oom
-- KEYS instance  hash   registration: host pid and more
-- ARGV order     a value that `reload` has not had yet
-- Returns 1, or 0 if the registration is gone. Run twice: the second run writes the same.
if redis.call('HEXISTS', instance, 'host') == 0 then return 0 end
redis.call('HSET', instance, 'reload', order)
return 1
