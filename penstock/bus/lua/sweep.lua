-- Delete what a killed move has left of a queue that does not exist any more.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS metadata       hash  what the queue was; nothing is deleted if it exists
-- KEYS arrival        hash  `token`: the move that was under way
-- KEYS held_messages  list  what was held, or had arrived
-- KEYS held_toack     list  as `held_messages`
-- KEYS strays         list  what was gathered and may not have arrived: another server may have the queue again
-- KEYS batch          string  the name of that
-- ARGV kept           seconds that `strays` lives without another move
-- Returns how many messages were deleted. Run twice: the second run finds nothing.
local call = redis.call
local refused = wrong_type({hash = {arrival}, list = {held_messages, held_toack}})
if refused then return refused end
if call('EXISTS', metadata) == 1 then return 0 end
local deleted = (call('LLEN', held_messages) + call('LLEN', held_toack)) / 2
call('UNLINK', held_messages, held_toack)
call('HDEL', arrival, 'token')
for _, key in ipairs({strays, batch}) do call('EXPIRE', key, kept) end
return math.floor(deleted)
