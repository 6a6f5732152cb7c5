-- Take the oldest messages that a client of busmq has pushed to a queue after it was moved; keep them until they arrived.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS metadata  hash    what the queue is; nothing is taken if it exists: then it is a queue
-- KEYS messages  list    id, body, id, body, ... (oldest at the head)
-- KEYS strays    list    what was taken and may not have arrived
-- KEYS batch     string  the name of that
-- ARGV arrived   the name of the batch that has arrived, which is deleted
-- ARGV name      for what is taken next
-- ARGV most      maximum number of messages to take
-- ARGV bytes     take no more once they have this many bytes together
-- Returns the name of the batch, and id and body of each message. Run twice: the same again.
local call = redis.call
local refused = wrong_type({hash = {metadata}, list = {messages, strays}, string = {batch}})
if refused then return refused end
if call('GET', batch) == arrived or call('EXISTS', strays) == 0 then call('UNLINK', strays, batch) end
if call('EXISTS', batch) == 0 and call('EXISTS', metadata) == 0 then
  local size, taken = 0, 0
  while taken < tonumber(most) and size < tonumber(bytes) and call('LLEN', messages) > 1 do
    call('LMOVE', messages, strays, 'LEFT', 'RIGHT')
    size = size + #call('LMOVE', messages, strays, 'LEFT', 'RIGHT')
    taken = taken + 1
  end
  if taken > 0 then call('SET', batch, name) end
end
for _, key in ipairs({strays, batch}) do call('PERSIST', key) end
local found = call('LRANGE', strays, 0, -1)
table.insert(found, 1, call('GET', batch) or '')
return found
