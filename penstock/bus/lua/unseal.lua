-- Give up a move: the queue stays where it is, with all its messages. If it was handed over, call
-- forget.lua first, so that it has no two homes.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH numbers: whole MAX_TTL
-- KEYS metadata       hash    what the queue is
-- KEYS messages       list    id, body, id, body, ... (oldest at the head)
-- KEYS toack          list    as `messages`
-- KEYS held_messages  list    what `messages` was
-- KEYS held_toack     list    what `toack` was
-- ARGV token          of the move; nothing happens for another one
-- ARGV forgotten      1 if the target can not take over any more
-- ARGV most           maximum number of messages to add to what is held
-- ARGV channel        where consumers hear of messages
-- Returns how many were added: if it is more than 0, call again; -1 if the queue was handed over and is not forgotten.
-- Run twice: the second run does nothing.
local BYTES = 1048576
local call = redis.call
local refused = wrong_type({hash = {metadata}, list = {messages, toack, held_messages, held_toack}})
if refused then return refused end
local ticket = call('HGET', metadata, 'moving')
if not ticket or not string.find(ticket, ' ' .. token .. ' ', 1, true) then return 0 end
if forgotten ~= '1' and string.sub(ticket, 1, 8) ~= 'carried ' then return -1 end
local added = 0
for key, into in pairs({[messages] = held_messages, [toack] = held_toack}) do
  if call('EXISTS', into) == 1 then
    local many, size = math.min(math.floor(call('LLEN', key) / 2), tonumber(most)), 0
    while many > 0 and size < BYTES do
      call('LMOVE', key, into, 'LEFT', 'RIGHT')
      size, many, added = size + #call('LMOVE', key, into, 'LEFT', 'RIGHT'), many - 1, added + 1
    end
  end
end
if added > 0 then return added end
local left, ttl = call('PTTL', metadata), whole(call('HGET', metadata, 'ttl'), MAX_TTL)
if left < 0 and ttl then -- busmq writes the metadata first, and its ttl in a second command
  left = 1000 * ttl
  call('EXPIRE', metadata, ttl)
end
for key, into in pairs({[held_messages] = messages, [held_toack] = toack}) do
  if call('EXISTS', key) == 1 then
    call('RENAME', key, into)
    if left >= 0 then call('PEXPIRE', into, string.format('%.0f', left)) end
  end
end
call('HDEL', metadata, 'moving')
call('PUBLISH', channel, '0')
return 0
