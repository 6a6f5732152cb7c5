-- Give back messages that were taken for good and not handled: they are the next to be taken, in order.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH relocation: leaving gone
-- WITH numbers: whole MAX_TTL
-- KEYS metadata  hash  what the queue is; an error if it is missing
-- KEYS messages  list  id, body, id, body, ... (oldest at the head)
-- ARGV channel   where consumers hear of them
-- ARGV taken...  id and body of each, oldest first
-- Returns how many were put back. Run twice: the second run puts them there again.
local call = redis.call
local refused = wrong_type({hash = {metadata}, list = {messages}}) or leaving(metadata) or gone(metadata)
if refused then return refused end
local ttl = whole(call('HGET', metadata, 'ttl'), MAX_TTL)
local words = {}
for place = #taken, 1, -1 do words[#words + 1] = taken[place] end
call('LPUSH', messages, unpack(words, 1, #words))
if ttl then call('EXPIRE', messages, ttl) end
call('PUBLISH', channel, '0')
return #words / 2
