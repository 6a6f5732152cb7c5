-- Part of the scripts that push answers, and of the one that ends their lists: `send`, and `sent`, which writes the counts.
--
-- KEYS answers       zset  lists for answers that have a TTL of ours, by when they are to end (s since the epoch)
-- KEYS answers_more  hash  how many answers each of them has had besides its first
-- KEYS answers_sent  hash  metric: answers and errors that were sent, and what became of them
-- Returns nothing by itself. Run twice: as the script does that it is part of.

-- The monitor ends a list and counts what nobody took. The server does so only where no monitor has for so long (s).
local LEEWAY = 60
local answer_counts, first_to_end = {}, nil

local function tally_answers(field, number)
  if number ~= 0 then answer_counts[field] = (answer_counts[field] or 0) + number end
end

-- Push to a list, which lives `life` seconds from now; returns the server's error, if there is one. A list that was there
-- without a TTL holds what others were promised, and one with a longer TTL is its reader's: both stay as they are.
local function send(key, message, now, life, lasting)
  local pushed = redis.pcall('LPUSH', key, message)
  if type(pushed) == 'table' then
    tally_answers('refused', 1)
    return pushed.err
  end
  tally_answers('count', 1)
  local left = lasting and -1 or pushed == 1 and 0 or redis.call('PTTL', key)
  if left < 0 or left > (life + LEEWAY + 1) * 1000 then
    tally_answers('lasting', 1)
    return
  end
  redis.call('EXPIRE', key, life + LEEWAY)
  if redis.call('ZADD', answers, string.format('%.6f', now + life), key) == 0 then
    redis.call('HINCRBY', answers_more, key, 1)
  elseif redis.call('ZCARD', answers) == 1 then
    first_to_end = now + life
  end
end

-- At the end of the script: write the counts, and tell `channel` if a list is to end, and none was before.
local function sent(channel)
  for field, number in pairs(answer_counts) do redis.pcall('HINCRBY', answers_sent, field, number) end
  if first_to_end then redis.call('PUBLISH', channel, string.format('%.6f', first_to_end)) end
end
