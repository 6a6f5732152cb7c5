-- Set fields of a queue's metadata, and keep it alive for its ttl; no key lives shorter than before.
--
-- WITH types: wrong_type
-- WITH relocation: leaving
-- WITH numbers: whole MAX_TTL
-- KEYS metadata   hash    what the queue is; nothing is set if it is missing
-- KEYS messages   list    what waits
-- KEYS msgid      string  the last id that was given
-- KEYS toack      list    what was handed out and not acknowledged
-- ARGV fields...  name and value of each
-- Returns the ttl, or 0 if the queue does not exist. Run twice: the same again.
local refused = wrong_type({hash = {metadata}, list = {messages, toack}, string = {msgid}}) or leaving(metadata)
if refused then return refused end
if redis.call('HEXISTS', metadata, 'ttl') == 0 then return 0 end
redis.call('HSET', metadata, unpack(fields, 1, #fields))
local ttl = whole(redis.call('HGET', metadata, 'ttl'), MAX_TTL)
for _, key in ipairs({metadata, messages, msgid, toack}) do
  if ttl and ttl > redis.call('TTL', key) then redis.call('EXPIRE', key, ttl) end
end
return ttl or 1
