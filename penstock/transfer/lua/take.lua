-- Settle what was taken before, take the oldest messages of a list into a pending list, and return them.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH moving: move
-- KEYS source     list   what publishers push to (newest at the head)
-- KEYS pending    list   what the caller has taken and not settled (oldest at the tail)
-- KEYS takers     zset   names that may hold a pending list of this source, by their last call (microseconds)
-- ARGV taker      the caller's name there
-- ARGV batch      maximum number of messages to take
-- ARGV bytes      take no more once they have this many bytes together
-- Returns the messages, oldest first. Run twice: the second run settles them and takes the next batch.
local refused = wrong_type({list = {source}, zset = {takers}})
if refused then return refused end
redis.call('DEL', pending)
local time = redis.call('TIME')
redis.call('ZADD', takers, string.format('%d', time[1] * 1000000 + time[2]), taker)
local taken = {}
move(source, pending, 'RIGHT', 'LEFT', tonumber(batch), tonumber(bytes), taken)
return taken
