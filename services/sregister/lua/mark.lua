-- Note in the registration of a program where it is and whether it is ready, and announce a change of that.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS instance   hash     host, pid and more of one live instance; `address child ready unready` are written
-- KEYS metrics    hash     count, failed
-- ARGV id         the instance's id
-- ARGV host       the instance's host
-- ARGV pid        its process id; if the registration is gone or another process's, nothing is written
-- ARGV address    where others reach the program; empty if it has not said it
-- ARGV child      the process id of the program
-- ARGV unready    why it is not ready; empty if it is
-- ARGV channel    where the id is announced
-- Returns 1, or 0 if the registration is gone. Run twice: the second run changes nothing.
local refused = wrong_type({hash = {instance, metrics}})
if refused then return refused end
local found = redis.call('HMGET', instance, 'host', 'pid', 'ready')
if found[1] ~= host or found[2] ~= pid then return 0 end
local ready = unready == '' and '1' or '0'
redis.call('HSET', instance, 'ready', ready, 'child', child)
if address ~= '' then redis.call('HSET', instance, 'address', address) end
if unready ~= '' then redis.call('HSET', instance, 'unready', unready) else redis.call('HDEL', instance, 'unready') end
if found[3] ~= ready then
  if ready == '1' then redis.call('HINCRBY', metrics, 'count', 1)
  elseif found[3] then redis.call('HINCRBY', metrics, 'failed', 1) end
  redis.call('PUBLISH', channel, id)
end
return 1
