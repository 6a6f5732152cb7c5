-- Give permits back, or keep them for longer.
--
-- WITH types: wrong_type
-- WITH permits: pass_on give_back
-- KEYS limit      hash    by key (and `:at`, `:until`, `:count`) when the next permit is there, and how many are in use
-- ARGV consumer   who has the permits; what another one has by now is left alone
-- ARGV verb       `free` or `keep`
-- ARGV interval   seconds between two permits that are given back without having been used; 0: they were
-- ARGV control    channel of those who consume the stream
-- ARGV words...   two for each: key and holder
-- Returns how many were in use. Run twice: none is.
local refused = wrong_type({hash = {limit}, zset = {busy, parked, wait}, stream = {stream}})
if refused then return refused end
local call = redis.call
local time = call('TIME')
local now, count = time[1] + time[2] / 1e6, 0
for place = 1, #words, 2 do
  local key, holder = words[place], words[place + 1]
  local member = key .. ' ' .. holder
  local owned = string.match(holder, '^%d+%-%d+$') and redis.pcall('XPENDING', stream, group, holder, holder, 1)[1]
  local in_use = not (owned and owned[2] ~= consumer) and call('ZSCORE', busy, member)
  if tonumber(interval) > 0 then
    local at = call('HGET', limit, key .. ':at')
    if tonumber(at) then call('HSET', limit, key .. ':at', string.format('%.6f', at - interval)) end
  end
  if in_use and verb == 'keep' then
    call('ZADD', busy, now + lease, member)
    count = count + 1
  elseif in_use then
    call('ZREM', busy, member)
    count = count + 1
    if not pass_on(key, now) then give_back(key) end
  end
end
if count > 0 and verb == 'free' then call('PUBLISH', control, 'due 0') end
return count
