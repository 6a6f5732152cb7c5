-- Give up a move at its target: what has arrived is deleted, and that move can not end any more.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS arrival        hash  `token`: the move under way; `done`, `given_up`: the last one that ended so
-- KEYS held_messages  list  what has arrived
-- KEYS held_toack     list  what has arrived
-- ARGV token          of the move; what arrived for another one stays
-- ARGV kept           seconds for which `given_up` is kept
-- Returns 0 if this server has taken over the queue before, else 1. Run twice: the same again.
local call = redis.call
local refused = wrong_type({hash = {arrival}})
if refused then return refused end
if call('HGET', arrival, 'done') == token then return 0 end
if call('HGET', arrival, 'token') == token then
  call('HDEL', arrival, 'token')
  call('UNLINK', held_messages, held_toack)
end
call('HSET', arrival, 'given_up', token)
if call('HEXISTS', arrival, 'token') == 0 then call('EXPIRE', arrival, kept) end
return 1
