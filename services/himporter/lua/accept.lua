-- Push a request whose answer its client fetches later, unless too many lists of answers are kept.
--
-- WITH types: wrong_type
-- KEYS replies    zset  lists of answers, by the time (s since the epoch) from which on they may be removed
-- KEYS list       list  progress and answer of the request
-- KEYS out        list  requests (newest at the head)
-- KEYS taken      hash  metric: requests that were accepted; by list those that are owed to it
-- KEYS settled    hash  metric: requests that were pushed
-- KEYS delivered  hash  metric: the same by list
-- ARGV message    the request
-- ARGV note       the first entry of `list`, which then has a TTL from the beginning: services that answer leave it alone
-- ARGV keep       how long its answer is kept (s)
-- ARGV most       maximum number of lists of answers
-- Returns 1, or 0 if nothing was done since there are too many. Run twice: the second run pushes the request again.
local call = redis.call
local refused = wrong_type({zset = {replies}, list = {list, out}, hash = {taken, settled, delivered}})
if refused then return refused end
if call('ZCARD', replies) >= tonumber(most) then return 0 end
call('ZADD', replies, tonumber(call('TIME')[1]) + keep, list)
call('LPUSH', list, note)
call('EXPIRE', list, keep)
call('LPUSH', out, message)
redis.pcall('HINCRBY', taken, 'count', 1)
redis.pcall('HINCRBY', taken, out, 1)
redis.pcall('HINCRBY', settled, 'count', 1)
redis.pcall('HINCRBY', delivered, 'count', 1)
redis.pcall('HINCRBY', delivered, out, 1)
return 1
