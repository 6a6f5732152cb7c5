-- Append messages that were pushed elsewhere after the queue was moved here; they get new ids.
--
-- WITH types: wrong_type
-- WITH numbers: whole MAX_TTL
-- KEYS metadata   hash    what the queue is; an error if it is missing
-- KEYS messages   list    id, body, id, body, ... (oldest at the head)
-- KEYS msgid      string  the last id that was given
-- KEYS arrival    hash    the last batch of each server
-- ARGV source     the server that they come from
-- ARGV former     the name of the batch of that server before, empty if none is known
-- ARGV batch      their name
-- ARGV kept       seconds for which that is remembered
-- ARGV channel    where consumers hear of new messages
-- ARGV bodies...  oldest first
-- Returns how many were appended: 0 if they were before, by this caller or another one, whichever batch came since. Run
-- twice: the second run appends nothing.
local call = redis.call
local refused = wrong_type({hash = {metadata, arrival}, list = {messages}, string = {msgid}})
if refused then return refused end
local ttl = whole(call('HGET', metadata, 'ttl'), MAX_TTL)
if not ttl or call('HEXISTS', metadata, 'moving') == 1 then return redis.error_reply('GONE the queue is not here') end
if (call('HGET', arrival, source) or '') ~= former then return 0 end
local last
for _, body in ipairs(bodies) do
  last = call('INCR', msgid)
  call('RPUSH', messages, string.format('%.0f', last), body)
end
call('HSET', arrival, source, batch)
call('EXPIRE', arrival, kept)
for _, key in ipairs({metadata, messages, msgid}) do call('EXPIRE', key, ttl) end
call('PUBLISH', channel, string.format('%.0f', last))
return #bodies
