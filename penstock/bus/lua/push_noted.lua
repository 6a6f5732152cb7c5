-- Append the next messages of an outbox to a queue unless they have arrived already, and note that in its ledger.
--
-- WITH types: wrong_type
-- WITH relocation: leaving
-- WITH numbers: whole MAX_TTL
-- WITH appending: room_for append
-- WITH ledger: noted note
-- KEYS metadata   hash    what the queue is; nothing is pushed if it is missing
-- KEYS messages   list    id, body, id, body, ... (oldest at the head)
-- KEYS msgid      string  the last id that was given
-- KEYS toack      list    kept alive with the others
-- KEYS ledger     hash    what has come from each outbox
-- ARGV source     the outbox
-- ARGV token      its fencing token; refused unless it is the last one that met
-- ARGV first      the number of the first message in that outbox
-- ARGV channel    where consumers hear of new messages
-- ARGV bodies...  what to push, oldest first
-- Returns the id of the first message, how many were pushed (fewer if the queue has no room), and the number of the last
-- message that has arrived; nothing is pushed if that shows that messages are missing before. Run twice: the second run
-- pushes nothing.
local refused = wrong_type({hash = {metadata, ledger}, list = {messages, toack}, string = {msgid}}) or leaving(metadata)
if refused then return refused end
local known, sequence = noted()
token = tonumber(token)
if known ~= token then return redis.error_reply('FENCED ' .. ledger) end
if sequence ~= first - 1 then return {0, 0, sequence} end
local ttl, maxsize = unpack(redis.call('HMGET', metadata, 'ttl', 'maxsize'))
ttl = whole(ttl, MAX_TTL)
local many = room_for(ttl, maxsize)
if type(many) == 'table' then return many end
-- Changes nothing: one who may not write the ledger, or has no room for it, is refused before the messages.
note(token, sequence)
local appended = append(ttl, many, '')
sequence = sequence + appended[2]
note(token, sequence)
return {appended[1], appended[2], sequence}
