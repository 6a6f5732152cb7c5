-- Order a live instance to read its settings anew; nobody is made alive by an order that comes too late.
--
-- FLAGS allow-oom
-- KEYS instance  hash   registration: host pid and more
-- ARGV order     a value that `reload` has not had yet
-- Returns 1, or 0 where the registration is gone. Run twice: the second run writes the same.
if redis.call('HEXISTS', instance, 'host') == 0 then return 0 end
redis.call('HSET', instance, 'reload', order)
return 1
