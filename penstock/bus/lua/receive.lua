-- Append messages that arrive from another server to those that have arrived.
--
-- KEYS arrival   hash  `token`: the move under way
-- KEYS held      list  what has arrived: id, body, id, body, ...
-- ARGV token     of this move; an error if another one is under way
-- ARGV place     how many messages came before; nothing is appended if it differs
-- ARGV words...  id and body of each
-- Returns how many have arrived. Run twice: the second run appends nothing.
local call = redis.call
if call('HGET', arrival, 'token') ~= token then return redis.error_reply('FENCED another move has begun') end
if call('LLEN', held) == 2 * tonumber(place) then call('RPUSH', held, unpack(words, 1, #words)) end
return math.floor(call('LLEN', held) / 2)
