-- Move the oldest messages to `out`, each once: first those in `pending`, then those that wait in `source`. Drop those
-- whose SHA-1 is remembered. All or none.
--
-- WITH lease
-- WITH types: wrong_type
-- WITH reading: largest_read
-- WITH oldest: take_oldest
-- WITH held: note enter keep
-- WITH tallies: write_tallies
-- WITH once: once_keys pass end_passing
-- KEYS pending  list   what this instance has taken and not settled (oldest at the tail)
-- KEYS source   list   what publishers push to (newest at the head)
-- KEYS lease?   hash   owner token expires of the one active replica
-- ARGV token    the lease's fencing token that the caller holds
-- ARGV batch    maximum number of messages to move
-- ARGV bytes    maximum number of bytes to move; one message always goes
-- Returns messages moved or dropped, messages that still wait, and bytes of the largest message read. Run twice: the second
-- run moves the next batch.
local call = redis.call
local refused = wrong_type(once_keys) or wrong_type({list = {pending, source}, hash = {holds, missing, taken}})
if refused then return refused end
local here = call('LLEN', pending)
local waiting = here + call('LLEN', source)
note(pending, here)
if waiting > 0 then
  -- A server whose memory is full refuses only a script's first write: meet that here.
  local full = redis.pcall('LMOVE', pending, pending, 'RIGHT', 'RIGHT')
  if type(full) == 'table' then return full end
end

local moved = take_oldest(here, math.min(tonumber(batch), waiting), tonumber(bytes), pass)
local left = math.max(here - moved, 0)
keep(pending, here, left)
enter(moved - (here - left))
end_passing()
write_tallies()
return {moved, waiting - moved, largest_read}
