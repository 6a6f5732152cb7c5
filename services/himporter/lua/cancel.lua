-- Cancel an accepted request: say so to its workers, and to clients that look for its answer.
--
-- WITH types: wrong_type
-- KEYS replies    zset    lists of answers, by the time (s since the epoch) from which on they may be removed
-- KEYS list       list    progress and answer of the request
-- KEYS cancelled  string  set for workers that have not begun
-- ARGV channel    where workers that have begun hear of it
-- ARGV id         the request
-- ARGV note       what is pushed to `list`
-- Returns 1, or 0 if the request is unknown. Run twice: the second run does nothing.
local call = redis.call
local refused = wrong_type({zset = {replies}, list = {list}, string = {cancelled}})
if refused then return refused end
local ends = call('ZSCORE', replies, list)
local left = ends and math.ceil(ends - call('TIME')[1]) or 0
if left <= 0 then return 0 end
if call('SET', cancelled, 1, 'NX', 'EX', string.format('%.0f', left)) then
  call('LPUSH', list, note)
  call('PUBLISH', channel, id)
end
return 1
