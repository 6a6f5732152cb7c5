-- End lists for answers whose time is over, and count what became of the answers in them.
--
-- WITH answers
-- KEYS lists...  list  those to end, by `answers`
-- Returns how many were ended; one that got another answer meanwhile is left. Run twice: none is due.
local time = redis.call('TIME')
local now, ended = time[1] + time[2] / 1e6, 0
for _, key in ipairs({answers, answers_more, answers_sent}) do
  local kind, expected = redis.call('TYPE', key).ok, key == answers and 'zset' or 'hash'
  if kind ~= expected and kind ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. kind .. ', expected a ' .. expected)
  end
end

-- What its reader left is deleted with the list, if it is ours to delete: it has the TTL that `send` gave it, and no more
-- in it than was sent. Where others have pushed, too, it loses the TTL and stays.
local function close(key, number, overdue)
  local length, left = redis.pcall('LLEN', key), redis.call('PTTL', key)
  if type(length) ~= 'number' or length == 0 then
    tally_answers(length == 0 and overdue < LEEWAY and 'taken' or 'unseen', number)
  elseif left < 0 or left > (LEEWAY + 1) * 1000 then
    tally_answers('lasting', number)
  elseif length > number then
    redis.call('PERSIST', key)
    tally_answers('lasting', number)
  else
    redis.call('UNLINK', key)
    tally_answers('taken', number - length)
    tally_answers('expired', length)
  end
end

for _, key in ipairs(lists) do
  local score = tonumber(redis.call('ZSCORE', answers, key) or 'inf')
  if score <= now then
    close(key, 1 + (redis.call('HGET', answers_more, key) or 0), now - score)
    redis.call('ZREM', answers, key)
    redis.call('HDEL', answers_more, key)
    ended = ended + 1
  end
end
sent()
return ended
