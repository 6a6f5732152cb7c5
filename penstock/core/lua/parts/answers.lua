-- Push answers to lists that end some time after the last one.
--
-- USES tally
-- GIVES send publish_first LEEWAY
-- KEYS answers       zset  lists for answers that have a TTL of ours, by their end (s since the epoch)
-- KEYS answers_more  hash  answers to each of them besides the first
-- KEYS answers_sent  hash  metric: answers and errors sent, and their outcomes

-- The monitor ends a list and counts what nobody took. If no monitor does, the server ends it this much later (s).
local LEEWAY = 60
local first_to_end, lives_on

-- Push to a list, and give it `life` seconds from now, unless `lasting` (JSON, an array) names it; return the server's
-- error, or nil. An existing list without a TTL holds what others were promised, and one with a longer TTL is its
-- reader's: both keep theirs.
local function send(key, message, now, life, lasting)
  if not lives_on then
    lives_on = {}
    for _, name in ipairs(cjson.decode(lasting)) do lives_on[name] = true end
  end
  local pushed = redis.pcall('LPUSH', key, message)
  if type(pushed) == 'table' then
    tally(answers_sent, 'refused')
    return pushed.err
  end
  tally(answers_sent, 'count')
  local left = lives_on[key] and -1 or pushed == 1 and 0 or redis.call('PTTL', key)
  if left < 0 or left > (life + LEEWAY + 1) * 1000 then
    tally(answers_sent, 'lasting')
    return
  end
  redis.call('EXPIRE', key, string.format('%.0f', life + LEEWAY))
  if redis.call('ZADD', answers, string.format('%.6f', now + life), key) == 0 then
    redis.call('HINCRBY', answers_more, key, 1)
  elseif redis.call('ZCARD', answers) == 1 then
    first_to_end = now + life
  end
end

-- At the end of the script: publish on `channel` when the first list is to end, if there was none before.
local function publish_first(channel)
  if first_to_end then redis.call('PUBLISH', channel, string.format('%.6f', first_to_end)) end
end
