-- Delete a queue that another server has taken over, and tell those that are attached to it.
--
-- Messages that a client of busmq has added since stay, without metadata: see gather.lua.
-- FLAGS allow-oom
-- KEYS metadata       hash    what the queue was
-- KEYS msgid          string  the last id that was given
-- KEYS toack          list    as `messages`
-- KEYS lease          string  who consumed alone
-- KEYS ledger         hash    what had come from each outbox
-- KEYS held_messages  list    what the other server has
-- KEYS held_toack     list    what the other server has
-- ARGV handed         the field `moving`; nothing is deleted if it differs
-- ARGV channel        where buses hear of moved queues
-- ARGV name           the queue
-- Returns 1, or 0 if it was deleted before. Run twice: the second run does nothing.
local call = redis.call
if call('HGET', metadata, 'moving') ~= handed then return 0 end
call('UNLINK', metadata, msgid, toack, lease, ledger, held_messages, held_toack)
call('PUBLISH', channel, name)
return 1
