-- Create a queue, or find it. All or none.
--
-- WITH types: wrong_type
-- WITH relocation: leaving
-- WITH numbers: whole MAX_TTL
-- KEYS metadata  hash    what the queue is: ttl (s), source, discover, maxsize, and fields of the user
-- KEYS messages  list    id, body, id, body, ... (oldest at the head)
-- KEYS msgid     string  the last id that was given
-- KEYS toack     list    as `messages`: what was handed out and not acknowledged
-- ARGV ttl       seconds that a new queue lives without an attached client
-- ARGV maxsize   maximum number of messages of a new queue; 0 for no limit
-- ARGV discover  `true` if federated buses may find it
-- Returns whether the queue existed, its ttl, its field `discover`, and the time (us). Run twice: the second run finds it.
local call = redis.call
local refused = wrong_type({hash = {metadata}, list = {messages, toack}, string = {msgid}}) or leaving(metadata)
if refused then return refused end
local found = whole(call('HGET', metadata, 'ttl'), MAX_TTL)
local exists = found ~= nil and found >= 1
if exists then
  ttl = string.format('%d', found)
else
  call('HSET', metadata, 'ttl', ttl, 'source', 'local', 'discover', discover, 'maxsize', maxsize)
end
for _, key in ipairs({metadata, messages, msgid, toack}) do call('EXPIRE', key, ttl) end
local now = call('TIME')
return {exists and 1 or 0, tonumber(ttl), call('HGET', metadata, 'discover') or '', now[1] .. string.format('%06d', now[2])}
