-- Give a queue away to the server that has received its messages: from now on only that one may have it.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH numbers: whole MAX_TTL
-- KEYS metadata       hash    what the queue is
-- KEYS messages       list    nothing is given away while it has any: see seal.lua
-- KEYS toack          list    as `messages`
-- KEYS msgid          string  the last id that was given
-- KEYS lease          string  who consumes alone
-- KEYS ledger         hash    what has come from each outbox
-- KEYS arrival        hash    by former server, the last batch of messages that came from there: see adopt.lua
-- KEYS held_messages  list    what the target has received
-- KEYS held_toack     list    what the target has received
-- ARGV ticket         of this move: the field `moving`
-- ARGV handed         what `moving` becomes
-- ARGV arrived        how many of `held_messages` have arrived; nothing is given away if there are more
-- ARGV arrived_toack  the same of `held_toack`
-- Returns nothing if the queue is not being moved so, an empty table if more is to be carried; else the time (ms) until
-- it expires, the last id, who has the lease, the time (ms) of that, the metadata, the batches of `arrival`, the ledger, and
-- the time (ms) of that. The first time is the whole ttl if none runs yet: busmq writes the metadata first, and its ttl in
-- a second command. It is -1 without a field `ttl`. Run twice: the same.
local call = redis.call
local refused = wrong_type({
  hash = {metadata, ledger, arrival}, list = {held_messages, held_toack}, string = {msgid, lease}
})
if refused then return refused end
local found = call('HGET', metadata, 'moving')
if found ~= ticket and found ~= handed then return false end
if found == ticket then
  local held, unacknowledged = call('LLEN', held_messages), call('LLEN', held_toack)
  if call('EXISTS', messages, toack) > 0 or held ~= 2 * arrived or unacknowledged ~= 2 * arrived_toack then return {} end
  call('HSET', metadata, 'moving', handed)
end
local left, ttl = call('PTTL', metadata), whole(call('HGET', metadata, 'ttl'), MAX_TTL)
if left < 0 and ttl then left = 1000 * ttl end
local notes, adopted = call('HGETALL', arrival), {}
for place = 1, #notes, 2 do
  if notes[place] ~= 'token' and notes[place] ~= 'done' and notes[place] ~= 'given_up' then
    adopted[#adopted + 1], adopted[#adopted + 2] = notes[place], notes[place + 1]
  end
end
local holds = call('PTTL', lease)
local last, holder, noted = call('GET', msgid) or '0', call('GET', lease) or '', call('HGETALL', ledger)
return {left, last, holder, holds, call('HGETALL', metadata), adopted, noted, call('PTTL', ledger)}
