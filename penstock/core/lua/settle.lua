-- Remove messages that have arrived at the other server, and bury those that it will never get.
--
-- FLAGS allow-oom
-- WITH lease
-- WITH types: wrong_type
-- WITH numbers: whole MAX_ID
-- WITH letters: push_letter
-- WITH held: note keep
-- KEYS pending    list   taken and not settled (oldest at the tail)
-- KEYS state      hash   `source`, the source id for the other server, and `sequence`, the number of the last settled message
-- KEYS letters?   list   dead letters, JSON; needed if there are any
-- KEYS delivered? hash   metric: messages that reached `out`
-- KEYS dead?      hash   metric: dead letters that `out` does not get
-- KEYS dropped?   hash   metric: messages that neither `out` nor the dead letters get
-- KEYS settled?   hash   metric: messages that left the pending list; given with `taken`
-- KEYS lease?     hash   owner token expires of the one active replica
-- ARGV token      the lease's fencing token that the caller holds
-- ARGV who        the source id as the caller knows it
-- ARGV sequence   the number of the last message that has arrived
-- ARGV origin     the list that they came from
-- ARGV out        the list of the other server
-- ARGV buried...  three a message that was not sent: its number, the reason, an error for a dead letter (empty: dropped)
-- Returns how many were settled; false if the source id is another one, or `pending` lacks some of them. Run twice: the
-- second run settles none.
local call = redis.call
local refused = wrong_type({list = {pending, letters}, hash = {state, delivered, dead, dropped, holds, missing, taken,
    settled}})
if refused then return refused end
local here = call('LLEN', pending)
note(pending, here)
if call('HGET', state, 'source') ~= who then return false end
local known = whole(call('HGET', state, 'sequence') or '0', MAX_ID)
if not known then return redis.error_reply('WRONGTYPE ' .. state .. ': its sequence is no number') end
local count = sequence - known
if count <= 0 then return 0 end
if here < count then return false end

local time = call('TIME')
for place = 1, #buried, 3 do
  local number, reason, words = unpack(buried, place, place + 2)
  if words ~= '' then
    push_letter({message = call('LINDEX', pending, known - number), reason = reason, error = words, source = origin,
      queue = out, attempts = 1, at = time[1] * 1000 + math.floor(time[2] / 1000)})
  end
  local key = words ~= '' and dead or dropped
  if key then
    redis.pcall('HINCRBY', key, 'count', 1)
    redis.pcall('HINCRBY', key, out, 1)
  end
end
call('LTRIM', pending, 0, -count - 1)
call('HSET', state, 'sequence', sequence)
keep(pending, here, here - count)
if taken then
  redis.pcall('HINCRBY', settled, 'count', count)
  redis.pcall('HINCRBY', taken, out, count)
  redis.pcall('HINCRBY', delivered, 'count', count - #buried / 3)
  redis.pcall('HINCRBY', delivered, out, count - #buried / 3)
end
return count
