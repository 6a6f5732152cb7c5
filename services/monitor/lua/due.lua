-- Read which messages are due, which wait untaken, and when to read again.
--
-- WITH types: wrong_type
-- KEYS deadlines   zset   ids in flight by deadline (s since the epoch); those that wait untaken by UNTAKEN + their number
-- KEYS delayed     zset   ids to deliver later, by the time of delivery
-- KEYS queue       list   what workers take from, at the tail
-- KEYS pushed      hash   the number of the last message that was pushed to a list, by the list's name
-- KEYS looks       hash   up to which number a list had been taken, and when: `number:seconds`, the oldest first, by name
-- ARGV batch       maximum number of ids to return
-- ARGV oldest      maximum number of ids to return of those that wait untaken and are not known to have been taken
-- Returns how long until something falls due (s, as text; 0 if there is more than was returned, empty if nothing is to
-- come); of those without a deadline the ids that have been taken, and the oldest others; the ids past their deadline and
-- the ids to deliver, longest due first; the time; and 1 unless it is known of all in flight that they have been taken, so
-- that the list is to be read again, else 0. Run twice: the same again.
local UNTAKEN = 1e12
local call = redis.call

local function look()
  local time = call('TIME')
  local now = string.format('%d.%06d', time[1], time[2])
  local ready, first = {}, nil
  for place, key in ipairs({deadlines, delayed}) do
    ready[place] = call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, batch - #(ready[1] or {}))
    local following = tonumber(call('ZRANGE', key, #ready[place], #ready[place], 'WITHSCORES')[2])
    if following and following < UNTAKEN then first = math.min(first or math.huge, following) end
  end
  local started, waiting, unseen = {}, {}, 0
  local last = call('ZCARD', deadlines) > 0 and tonumber(call('HGET', pushed, queue)) or 0
  if last > (tonumber(string.match(call('HGET', looks, queue) or '', '(%-?%d+):[%d%.]+$')) or 0) then unseen = 1 end
  if call('ZCOUNT', deadlines, UNTAKEN, '+inf') > 0 then
    unseen = 1
    local taken = math.max(last - call('LLEN', queue), 0)
    local function score(number) return string.format('%d', UNTAKEN + number) end
    started = call('ZRANGEBYSCORE', deadlines, score(0), score(taken), 'LIMIT', 0, batch)
    for _, id in ipairs(call('ZRANGEBYSCORE', deadlines, '(' .. score(last), '+inf', 'LIMIT', 0, batch)) do
      started[#started + 1] = id
    end
    waiting = call('ZRANGEBYSCORE', deadlines, '(' .. score(taken), score(last), 'LIMIT', 0, oldest)
  end
  return {first and string.format('%.6f', math.max(first - now, 0)) or '', started, waiting, ready[1], ready[2], now, unseen}
end

-- It only reads: types need a check only if a command fails.
local done, found = pcall(look)
if done then return found end
return wrong_type({zset = {deadlines, delayed}, list = {queue}, hash = {pushed, looks}}) or error(found)
