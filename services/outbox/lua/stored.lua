-- Remove the oldest messages of a pending list: the outbox has them on disk, or they are dead letters. All or none.
--
-- WITH lease
-- WITH types: wrong_type
-- WITH numbers: whole MAX_ID
-- WITH in_hand: take_read
-- WITH held: note keep
-- WITH tallies: tally write_tallies
-- WITH letters: push_letter
-- KEYS pending    list  taken and not settled (oldest at the tail)
-- KEYS state      hash  `source`, the id of this list for the outbox, and `sequence`, the number of the last settled message
-- KEYS letters    list  dead letters, JSON
-- KEYS settled    hash  metric: messages that left the pending list
-- KEYS delivered  hash  metric: messages that the outbox has taken
-- KEYS dead       hash  metric: dead letters
-- KEYS dropped    hash  metric: messages to which nobody has subscribed
-- KEYS lease?     hash  owner token expires of the one active replica
-- ARGV token      the lease's fencing token that the caller holds
-- ARGV who        the source id as the caller knows it
-- ARGV origin     the list that they came from
-- ARGV count      how many to remove
-- ARGV lost       how many of them went nowhere
-- ARGV buried...  two a dead letter: its place from 1 on, and the reason
-- Returns 1, or 0 if the pending list or the source id has changed and nothing was done. Run twice: the second run does
-- nothing.
local call = redis.call
local refused = wrong_type({list = {pending, letters}, hash = {state, holds, missing, taken, settled, delivered, dead,
  dropped}})
if refused then return refused end
if call('HGET', state, 'source') ~= who then return 0 end
local known = whole(call('HGET', state, 'sequence') or '0', MAX_ID)
if not known then return redis.error_reply('WRONGTYPE ' .. state .. ': its sequence is no number') end
-- A server whose memory is full refuses only a script's first write: meet that here.
if #buried > 0 then
  local full = redis.pcall('LMOVE', pending, pending, 'RIGHT', 'RIGHT')
  if type(full) == 'table' then return full end
end
count, lost = tonumber(count), tonumber(lost)
local messages = take_read(count)
if not messages then return 0 end
note(pending, held)
keep(pending, held, held - count)
call('HSET', state, 'sequence', string.format('%.0f', known + count))

local time = call('TIME')
local at = time[1] * 1000 + math.floor(time[2] / 1000)
for number = 1, #buried, 2 do
  push_letter({message = messages[tonumber(buried[number])], reason = buried[number + 1], source = origin, attempts = 1,
    at = at})
end
local letters_made = #buried / 2
tally(settled, 'count', count)
tally(taken, origin, count)
for metric, number in pairs({[delivered] = count - letters_made - lost, [dead] = letters_made, [dropped] = lost}) do
  tally(metric, origin, number)
  tally(metric, 'count', number)
end
write_tallies()
return 1
