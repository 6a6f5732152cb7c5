-- Append messages to a queue. Those beyond its maxsize are refused; the others are appended all or none.
--
-- WITH types: wrong_type
-- WITH relocation: leaving
-- WITH numbers: whole MAX_TTL
-- WITH appending: room_for append
-- KEYS metadata   hash    what the queue is; nothing is pushed if it is missing
-- KEYS messages   list    id, body, id, body, ... (oldest at the head)
-- KEYS msgid      string  the last id that was given
-- KEYS toack?     list    kept alive with the others; without it the ttl of all stays as it is, not renewed
-- ARGV channel    where consumers hear of new messages
-- ARGV direct     where one that listens gets the messages at once, JSON; if nobody does, or it is empty, `channel` hears
-- ARGV bodies...  what to push, oldest first
-- Returns the id of the first message and how many were pushed, which is 0 if the queue is full. Run twice: the second run
-- pushes the same messages again.
local refused = wrong_type({hash = {metadata}, list = {messages, toack}, string = {msgid}}) or leaving(metadata)
if refused then return refused end
local ttl, maxsize = unpack(redis.call('HMGET', metadata, 'ttl', 'maxsize'))
ttl = whole(ttl, MAX_TTL)
local many = room_for(ttl, maxsize)
if type(many) == 'table' then return many end
return append(ttl, many, direct)
