-- Count what each pending list holds when messages enter or leave it, to detect messages that somebody else removes.
--
-- GIVES still_counted enter note keep
-- KEYS holds?    hash  messages counted in each pending list; without it nothing is counted
-- KEYS missing?  hash  metric: messages that disappeared from a pending list, by list
-- KEYS taken?    hash  metric: messages taken, counted when they enter a pending list

-- Return how many of the `here` messages in `list` were counted before; count those that are gone as missing.
local function still_counted(list, here)
  if not holds then return 0 end
  local counted = tonumber(redis.call('HGET', holds, list) or 0) or here
  if counted <= here then return counted end
  local gone = string.format('%.0f', counted - here)
  if type(redis.pcall('HINCRBY', missing, list, gone)) == 'number' then
    redis.pcall('HINCRBY', missing, 'count', gone)
    if here > 0 then redis.call('HSET', holds, list, string.format('%.0f', here)) else redis.call('HDEL', holds, list) end
  end
  return here
end

-- Count messages that enter. A counter that is no number stays as it is, for the audit to report.
local function enter(messages)
  if taken and messages > 0 then redis.pcall('HINCRBY', taken, 'count', messages) end
end

-- Count what BLMOVE has added to `list`, and what is gone from it. If the server refuses this, it refuses what follows.
local function note(list, here)
  local more = here - still_counted(list, here)
  if holds and more > 0 and type(redis.pcall('HSET', holds, list, string.format('%.0f', here))) == 'number' then enter(more) end
end

-- Record that `list` holds `here` messages, all of them counted; `before` were recorded.
local function keep(list, before, here)
  if holds and here > 0 and here ~= before then redis.call('HSET', holds, list, string.format('%.0f', here))
  elseif holds and here == 0 and before > 0 then redis.call('HDEL', holds, list) end
end
