-- Move the oldest messages to `out`, each for a token of the bucket: first those in `pending`, then those that wait in
-- `source`. The others stay where they are.
--
-- WITH lease
-- WITH types: wrong_type
-- WITH reading: largest_read
-- WITH oldest: take_oldest
-- WITH held: note enter keep
-- WITH tallies: tally write_tallies
-- WITH bucket: now full_at due write_bucket
-- KEYS pending    list    what this instance has taken and not settled (oldest at the tail)
-- KEYS source     list    what publishers push to (newest at the head)
-- KEYS out        list    where messages go
-- KEYS bucket     string  when the bucket is full again
-- KEYS settled    hash    metric: messages that left the pending list
-- KEYS delivered  hash    metric: messages pushed
-- KEYS lease?     hash    owner token expires of the one active replica
-- ARGV token      the lease's fencing token that the caller holds
-- ARGV batch      maximum number of messages to move
-- ARGV bytes      maximum number of bytes to move; one message always goes
-- ARGV nap        us that tokens gather, if the bucket holds that many, before the caller comes again
-- Returns messages moved, messages that still wait, bytes of the largest message read, and the us until there are tokens for
-- them; 0 if there are. Run twice: the second run moves the next ones that there are tokens for.
local call = redis.call
local refused = wrong_type({list = {pending, source, out}, string = {bucket},
  hash = {holds, missing, taken, settled, delivered}})
if refused then return refused end
local here = call('LLEN', pending)
local waiting = here + call('LLEN', source)
-- A pop of nothing: a full server refuses no write after it. Messages that move take no memory.
call('RPOP', source, 0)
note(pending, here)
local at = full_at(bucket, now + burst * interval)
local tokens = math.max(math.floor((now - due(at)) / interval) + 1, 0)

local function deliver(messages) call('LPUSH', out, unpack(messages, 1, #messages)) end
local moved = take_oldest(here, math.min(tonumber(batch), waiting, tokens), tonumber(bytes), deliver)
write_bucket(bucket, at + moved * interval)
local left = math.max(here - moved, 0)
keep(pending, here, left)
enter(moved - (here - left))
tally(settled, 'count', moved)
tally(taken, out, moved)
tally(delivered, out, moved)
tally(delivered, 'count', moved)
write_tallies()

local pause = 0
if waiting > moved and moved == tokens then
  local gathered = math.max(math.min(burst, math.floor(nap / interval)), 1)
  pause = math.max(math.ceil(due(at + (moved + gathered - 1) * interval) - now), 1)
end
return {moved, waiting - moved, largest_read, pause}
