-- End lists for answers whose time is over, and count the outcomes of the answers in them.
--
-- WITH types: wrong_type
-- WITH tallies: tally write_tallies
-- WITH answers: LEEWAY
-- KEYS lists...  list  those to end, by `answers`
-- Returns how many were ended; one that got another answer meanwhile is left. Run twice: none is due.
local time = redis.call('TIME')
local now, ended = time[1] + time[2] / 1e6, 0
local refused = wrong_type({zset = {answers}, hash = {answers_more, answers_sent}})
if refused then return refused end

-- Delete the list with what its reader left in it, if it has the TTL that `send` gave it, and no more messages than were
-- sent. If others have pushed, too, it loses the TTL and stays.
local function close(key, number, overdue)
  local left_over, life_left = redis.pcall('LLEN', key), redis.call('PTTL', key)
  if type(left_over) ~= 'number' or left_over == 0 then
    tally(answers_sent, left_over == 0 and overdue < LEEWAY and 'taken' or 'unseen', number)
  elseif life_left < 0 or life_left > (LEEWAY + 1) * 1000 then
    tally(answers_sent, 'lasting', number)
  elseif left_over > number then
    redis.call('PERSIST', key)
    tally(answers_sent, 'lasting', number)
  else
    redis.call('UNLINK', key)
    tally(answers_sent, 'taken', number - left_over)
    tally(answers_sent, 'expired', left_over)
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
write_tallies()
return ended
