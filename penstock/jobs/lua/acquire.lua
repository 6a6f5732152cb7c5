-- Take permits of a limit that all consumers of a group share; park jobs that get none.
--
-- WITH types: wrong_type
-- WITH permits: pass_on give_back
-- KEYS limit      hash    by key (and `:at`, `:until`, `:count`) when the next permit is there, and how many are in use
-- KEYS tries      hash    by entry the errors of its attempts (JSON); `<entry>:free` if the last one does not count
-- ARGV interval   seconds between two permits of a key; 0: as many as wanted
-- ARGV burst      permits that may be taken at once after a while without any
-- ARGV most       permits of a key in use at a time; 0: as many as wanted
-- ARGV parks      1: those that get none are parked
-- ARGV words...   two for each: key without spaces, and holder, which is the entry if it may be parked
-- Returns 1 for each that has a permit, else 0; and the seconds until one may be there (text). Run twice: it takes others.
local call = redis.call
local time = call('TIME')
local now = time[1] + time[2] / 1e6
local refused = wrong_type({hash = {limit, tries}, zset = {busy, parked, wait}, stream = {stream}})
if refused then return refused end
local step, room = tonumber(interval), tonumber(most)
-- What ends later than it can is from before the clock was set back.
local latest = now + step * (call('ZCARD', wait) + 1)
for _, member in ipairs(call('ZRANGEBYSCORE', busy, string.format('(%.6f', latest + lease), '+inf', 'LIMIT', 0, 100)) do
  call('ZADD', busy, now + lease, member)
end
for _, member in ipairs(call('ZRANGEBYSCORE', busy, '-inf', now, 'LIMIT', 0, 100)) do
  local key = string.match(member, '^(.*) [^ ]*$')
  call('ZREM', busy, member)
  if key and not pass_on(key, now) then give_back(key) end
end
local some = call('HRANDFIELD', limit, 3, 'WITHVALUES')  -- of keys that are not used any more
for place = 1, #some, 2 do
  local is_time = string.match(some[place], ':at$') or string.match(some[place], ':until$')
  if is_time and (tonumber(some[place + 1]) or 0) < now - 60 - interval * burst then
    call('HDEL', limit, some[place])
  end
end
local granted, after = {}, math.huge
for place = 1, #words, 2 do
  local key, holder = words[place], words[place + 1]
  local next_at = tonumber(call('HGET', limit, key .. ':at') or 0) or 0
  if next_at > now + 2 * step then next_at = now end
  next_at = math.max(next_at, now - step * (burst - 1))
  local in_use = room > 0 and tonumber(call('HGET', limit, key .. ':count') or 0) or 0
  local has_one = room > 0 and call('ZSCORE', busy, key .. ' ' .. holder)
  if step > 0 and next_at > now then
    granted[#granted + 1] = 0
    after = math.min(after, next_at - now)
    if parks == '1' then
      local due = tonumber(call('HGET', limit, key .. ':until') or 0) or 0
      due = math.max(due > latest and 0 or due, next_at)
      call('HSET', limit, key .. ':until', string.format('%.6f', due + step))
      call('ZADD', wait, due, holder)
      call('HSET', tries, holder .. ':free', 1)
      if has_one then call('ZADD', busy, due + lease, key .. ' ' .. holder) end
    end
  elseif room > 0 and not has_one and in_use >= room then
    granted[#granted + 1] = 0
    local first = call('ZRANGE', busy, 0, 0, 'WITHSCORES')[2]
    if first then after = math.min(after, first - now) end
    if parks == '1' then
      local ms, seq = string.match(holder, '^(%d+)-(%d+)$')
      ms, seq = string.rep('0', 20 - #ms) .. ms, string.rep('0', 20 - #seq) .. seq
      call('ZADD', parked, 0, key .. ' ' .. ms .. '-' .. seq)
      call('ZADD', wait, '+inf', holder)
      call('HSET', tries, holder .. ':free', 1)
    end
  else
    granted[#granted + 1] = 1
    if step > 0 then call('HSET', limit, key .. ':at', string.format('%.6f', next_at + step)) end
    if room > 0 then
      if not has_one then redis.pcall('HINCRBY', limit, key .. ':count', 1) end
      call('ZADD', busy, now + lease, key .. ' ' .. holder)
    end
  end
end
return {granted, after < math.huge and string.format('%.3f', math.max(0, after)) or ''}
