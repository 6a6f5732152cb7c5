-- Begin to move a queue to another server, or go on: hold its messages, which from now on no client takes or adds to.
--
-- What clients of busmq add nevertheless, which do not look at `moving`, is held, too.
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS metadata       hash    what the queue is; its field `moving` makes our clients wait
-- KEYS messages       list    id, body, id, body, ... (oldest at the head)
-- KEYS toack          list    as `messages`: what was handed out and not acknowledged
-- KEYS held_messages  list    what `messages` was
-- KEYS held_toack     list    what `toack` was
-- ARGV ticket         `carried`, the token of this move, and the target's address
-- ARGV most           maximum number of messages to add to what is held
-- Returns the ticket that holds (another's, if that move has not ended), how many messages are in either held list, and
-- how many are not held yet; nothing if the queue does not exist, then what is held is deleted. Run twice: adds the rest.
local BYTES = 1048576
local call = redis.call
if call('EXISTS', metadata) == 0 then
  call('UNLINK', held_messages, held_toack)
  return false
end
local refused = wrong_type({hash = {metadata}, list = {messages, toack, held_messages, held_toack}})
if refused then return refused end
local found = call('HGET', metadata, 'moving')
if not found then
  found = ticket
  call('HSET', metadata, 'moving', ticket)
  call('UNLINK', held_messages, held_toack)
  for key, into in pairs({[messages] = held_messages, [toack] = held_toack}) do
    if call('EXISTS', key) == 1 then
      call('RENAME', key, into)
      call('PERSIST', into)
    end
  end
end
for key, into in pairs({[messages] = held_messages, [toack] = held_toack}) do
  local many, size = math.min(math.floor(call('LLEN', key) / 2), tonumber(most)), 0
  while many > 0 and size < BYTES do
    call('LMOVE', key, into, 'LEFT', 'RIGHT')
    size, many = size + #call('LMOVE', key, into, 'LEFT', 'RIGHT'), many - 1
  end
end
local function pairs_in(key) return math.floor(call('LLEN', key) / 2) end
return {found, pairs_in(held_messages), pairs_in(held_toack), pairs_in(messages) + pairs_in(toack)}
