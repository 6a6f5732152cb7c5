-- Move the oldest messages of a pending list, whose keys the caller has read, to `out`, each once: drop those whose key is
-- remembered. All or none.
--
-- WITH lease
-- WITH types: wrong_type
-- WITH in_hand: take_read
-- WITH held: note keep
-- WITH tallies: write_tallies
-- WITH once: once_keys pass end_passing
-- KEYS pending   list   what this instance has taken and not settled (oldest at the tail)
-- KEYS lease?    hash   owner token expires of the one active replica
-- ARGV token     the lease's fencing token that the caller holds
-- ARGV known...  the key of each message, oldest first
-- Returns 1, or 0 if the pending list has changed and nothing was done. Run twice: the second run does nothing.
local refused = wrong_type(once_keys) or wrong_type({list = {pending}, hash = {holds, missing, taken}})
if refused then return refused end

-- A server whose memory is full refuses only a script's first write: meet that here.
local full = redis.pcall('LMOVE', pending, pending, 'RIGHT', 'RIGHT')
if type(full) == 'table' then return full end
local messages = take_read(#known)
if not messages then return 0 end
note(pending, held)
keep(pending, held, held - #messages)
pass(messages, known)
end_passing()
write_tallies()
return 1
