-- Take or keep the lease that makes one replica the active one.
--
-- KEYS lease    hash   owner token expires (ms since the epoch)
-- ARGV owner    the instance that asks
-- ARGV life     how long the lease lasts unless kept (ms); 0 gives it up
-- Returns the fencing token, larger for every new owner, or 0 if another instance holds the lease.
-- Run twice: the second run keeps it.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', lease, 'owner', 'expires')
local mine = held[1] == owner
if not mine and (life == '0' or tonumber(held[2] or 0) > now) then return 0 end
-- A full server refuses a script's first write, and no write after it. So change nothing first; a standby writes nothing.
if redis.call('EXISTS', lease) == 1 then redis.call('RENAMENX', lease, lease) else redis.call('UNLINK', lease) end
if not mine or (tonumber(held[2]) or 0) <= now then redis.call('HINCRBY', lease, 'token', 1) end
redis.call('HSET', lease, 'owner', owner, 'expires', string.format('%d', now + life))
return tonumber(redis.call('HGET', lease, 'token'))
