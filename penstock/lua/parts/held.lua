-- Part of the scripts that move messages into or out of a pending list: it counts what each list holds, so that a message
-- which somebody else removes from one is missed.
--
-- KEYS holds?    hash  messages in each pending list, as counted; without it nothing is counted
-- KEYS missing?  hash  metric: messages that disappeared from a pending list, by list
-- KEYS taken?    hash  metric: messages that were taken, counted when they enter a pending list
-- Returns nothing by itself. Run twice: as the script does that it is part of.

-- How many of the `here` messages in `list` are counted. Those that were counted and are gone are counted as missing.
local function still_counted(list, here)
  if not holds then return 0 end
  local counted = tonumber(redis.call('HGET', holds, list) or 0) or here
  if counted <= here then return counted end
  if type(redis.pcall('HINCRBY', missing, list, counted - here)) == 'number' then
    redis.call('HINCRBY', missing, 'count', counted - here)
    if here > 0 then redis.call('HSET', holds, list, here) else redis.call('HDEL', holds, list) end
  end
  return here
end

-- Count messages that enter. A counter that somebody has made no number stays as it is, for the audit to report.
local function enter(messages)
  if taken and messages > 0 then redis.pcall('HINCRBY', taken, 'count', messages) end
end

-- Count what came to `list` by BLMOVE, and what is gone from it. A server that refuses this refuses what follows, too.
local function note(list, here)
  local more = here - still_counted(list, here)
  if holds and more > 0 and type(redis.pcall('HSET', holds, list, here)) == 'number' then enter(more) end
end

-- Say how many messages `list` holds now that all of them are counted.
local function keep(list, before, here)
  if holds and here > 0 and here ~= before then redis.call('HSET', holds, list, here)
  elseif holds and here == 0 and before > 0 then redis.call('HDEL', holds, list) end
end
