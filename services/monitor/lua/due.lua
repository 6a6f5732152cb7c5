-- What is due, and when to look again.
--
-- KEYS deadlines   zset   ids in flight by deadline (s since the epoch)
-- KEYS delayed     zset   ids to be delivered later, by when
-- ARGV batch       most ids to return
-- Returns how long until something falls due (s, as text; 0 where there is more than was returned, empty where nothing is
-- to come), the ids past their deadline and the ids to deliver, longest due first, and the time. Run twice: the same
-- again.
for _, key in ipairs({deadlines, delayed}) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= 'zset' and kind ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. kind .. ', expected a zset')
  end
end
local time = redis.call('TIME')
local now = string.format('%d.%06d', time[1], time[2])
local found, first = {}, nil
for place, key in ipairs({deadlines, delayed}) do
  found[place] = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, batch - #(found[1] or {}))
  local following = redis.call('ZRANGE', key, #found[place], #found[place], 'WITHSCORES')[2]
  if following then first = math.min(first or math.huge, following) end
end
return {first and string.format('%.6f', math.max(first - now, 0)) or '', found[1], found[2], now}
