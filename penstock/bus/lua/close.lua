-- Destroy a queue with its messages, and tell those that are attached to it.
--
-- WITH types: wrong_type
-- WITH relocation: leaving
-- KEYS metadata  hash    what the queue is
-- KEYS messages  list    what waits
-- KEYS msgid     string  the last id that was given
-- KEYS toack     list    what was handed out and not acknowledged
-- KEYS lease     string  who consumes alone
-- ARGV channel   where buses hear of closed queues: the time (us), a space, the name
-- ARGV name      the queue
-- Returns 1, or 0 if it did not exist. Run twice: the second run destroys a queue that was created between.
local refused = wrong_type({hash = {metadata}, list = {messages, toack}, string = {msgid, lease}}) or leaving(metadata)
if refused then return refused end
local existed = redis.call('EXISTS', metadata)
redis.call('UNLINK', metadata, messages, msgid, toack, lease)
local now = redis.call('TIME')
redis.call('PUBLISH', channel, now[1] .. string.format('%06d ', now[2]) .. name)
return existed
