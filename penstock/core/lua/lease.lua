-- Take or keep the lease that makes one replica the active one.
--
-- KEYS lease    hash   owner token expires (ms since the epoch) life (ms)
-- ARGV owner    the instance that asks
-- ARGV life     how long the lease lasts unless kept (ms); 0 gives it up
-- Returns the fencing token, larger for every new owner, or 0 if another instance holds the lease.
-- Run twice: the second run keeps it.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('HMGET', lease, 'owner', 'expires', 'life')
local mine, expires = held[1] == owner, tonumber(held[2]) or 0
-- One that ends later than it can is from before the clock was set back.
local is_held = expires > now and expires <= now + (tonumber(held[3]) or math.huge)
if not mine and (life == '0' or is_held) then return 0 end
-- A full server refuses a script's first write, and no write after it. So change nothing first; a standby writes nothing.
if redis.call('EXISTS', lease) == 1 then redis.call('RENAMENX', lease, lease) else redis.call('UNLINK', lease) end
if not mine or not is_held then redis.call('HINCRBY', lease, 'token', 1) end
redis.call('HSET', lease, 'owner', owner, 'expires', string.format('%d', now + life), 'life', life)
return tonumber(redis.call('HGET', lease, 'token'))
