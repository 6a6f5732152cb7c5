-- Make what has arrived from another server the queue, once it was given away there. All or none.
--
-- WITH types: wrong_type
-- KEYS metadata       hash    what the queue is
-- KEYS messages       list    id, body, id, body, ... (oldest at the head)
-- KEYS msgid          string  the last id that was given
-- KEYS toack          list    as `messages`: what was handed out and not acknowledged
-- KEYS lease          string  who consumes alone
-- KEYS ledger         hash    what has come from each outbox
-- KEYS arrival        hash    `token`: the move under way; `done`: the last one that ended; and batches: see adopt.lua
-- KEYS held_messages  list    what has arrived
-- KEYS held_toack     list    what has arrived
-- ARGV token          of this move
-- ARGV last           the last id that was given
-- ARGV left           ms until the queue expires, -1 for never: see hand_over.lua
-- ARGV holder         who consumes alone, if anybody does
-- ARGV holds          ms that this lasts
-- ARGV kept           seconds for which `done` is kept
-- ARGV adopted        how many of `fields` are batches that the former server has adopted, which this one adopts no more
-- ARGV noted          how many of `fields` after those are of the ledger
-- ARGV noted_left     ms until the ledger expires
-- ARGV fields...      name and value of each batch, then of the ledger, then of the metadata
-- Returns 1, or 0 if this server does not know of the move. Run twice: the second run does nothing, and returns 1.
local call = redis.call
local refused = wrong_type({
  hash = {metadata, arrival, ledger}, list = {messages, toack, held_messages, held_toack}, string = {msgid, lease}
})
if refused then return refused end
if call('HGET', arrival, 'done') == token then return 1 end
if call('HGET', arrival, 'token') ~= token then return 0 end
if call('EXISTS', metadata, messages, toack) > 0 then
  return redis.error_reply('OCCUPIED the target has a queue of this name, too')
end
for key, into in pairs({[held_messages] = messages, [held_toack] = toack}) do
  if call('EXISTS', key) == 1 then call('RENAME', key, into) end
end
adopted, noted = tonumber(adopted), tonumber(noted)
if adopted > 0 then call('HSET', arrival, unpack(fields, 1, adopted)) end
for place = adopted + 1, adopted + noted, 2 do call('HSET', ledger, fields[place], fields[place + 1]) end
if noted > 0 then call('PEXPIRE', ledger, string.format('%.0f', math.max(noted_left, call('PTTL', ledger)))) end
call('HSET', metadata, unpack(fields, adopted + noted + 1, #fields))
if last ~= '0' then call('SET', msgid, last) end
if holder ~= '' and tonumber(holds) > 0 then call('SET', lease, holder, 'PX', holds) end
if tonumber(left) >= 0 then
  for _, key in ipairs({metadata, messages, msgid, toack}) do call('PEXPIRE', key, string.format('%.0f', math.max(1, left))) end
end
call('HDEL', arrival, 'token')
call('HSET', arrival, 'done', token)
call('EXPIRE', arrival, kept)
return 1
