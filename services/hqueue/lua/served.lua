-- Note that requests are served, and since when none were.
--
-- KEYS served     hash    `seen`, when requests were served last; `began` and `ended`, the last time in which none were (s since
--                         the epoch)
-- ARGV away       longest time between two calls while they are (s)
-- ARGV least      shortest time between two that write (s)
-- Returns 1 if none were served until now. Run twice: they are.
local call = redis.call
local time = call('TIME')
local now = time[1] + time[2] / 1e6
local seen = tonumber(call('HGET', served, 'seen') or '')
local stamp, was_away = string.format('%.3f', now), seen and now - seen > tonumber(away)
if was_away then -- a full server refuses it, and leases last until it has room
  redis.pcall('HSET', served, 'seen', stamp, 'began', string.format('%.3f', seen), 'ended', stamp)
elseif not seen or now - seen >= tonumber(least) then
  redis.pcall('HSET', served, 'seen', stamp)
end
return was_away and 1 or 0
