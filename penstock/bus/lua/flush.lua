-- Delete all messages of a queue; ids go on where they were.
--
-- WITH types: wrong_type
-- WITH relocation: leaving
-- KEYS metadata  hash  what the queue is
-- KEYS messages  list  what waits
-- KEYS toack     list  what was handed out and not acknowledged
-- Returns how many of the two lists there were. Run twice: the second run deletes what came between.
local refused = wrong_type({hash = {metadata}, list = {messages, toack}}) or leaving(metadata)
if refused then return refused end
return redis.call('UNLINK', messages, toack)
