-- Keep completions that only pub/sub has carried, each once, however many have heard it.
--
-- WITH types: wrong_type
-- KEYS done       stream  completions of all groups
-- KEYS heard      zset    digests of those that were kept lately, by when (s since the epoch)
-- ARGV capacity   about how many completions are kept
-- ARGV window     how long (s) the same message is the same completion
-- ARGV words...   two for each: job, and what was published
-- Returns how many had not been kept. Run twice: 0.
local call = redis.call
local refused = wrong_type({stream = {done}, zset = {heard}})
if refused then return refused end
local time = call('TIME')
local now, count = time[1] + time[2] / 1e6, 0
call('ZREMRANGEBYSCORE', heard, '-inf', now - window)
for place = 1, #words, 2 do
  local job, message = words[place], words[place + 1]
  if call('ZADD', heard, 'NX', now, redis.sha1hex(message)) == 1 then
    call('XADD', done, 'MAXLEN', '~', capacity, '*', 'job', job, 'msg', message)
    count = count + 1
  end
end
call('EXPIRE', heard, window)
return count
