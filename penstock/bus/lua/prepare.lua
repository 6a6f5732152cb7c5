-- Prepare the target of a move: what arrives is held until all of it has.
--
-- WITH types: wrong_type
-- KEYS metadata       hash  what the queue is; the move is refused if it exists
-- KEYS messages       list  as `metadata`
-- KEYS toack          list  as `metadata`
-- KEYS arrival        hash  `token`: the move under way; `done`: the last one that ended
-- KEYS held_messages  list  what has arrived
-- KEYS held_toack     list  what has arrived
-- ARGV token          of this move
-- Returns how many messages are in either held list. Run twice: the same again; what arrived for another move is deleted.
local call = redis.call
local refused = wrong_type({hash = {arrival}})
if refused then return refused end
if call('HGET', arrival, 'given_up') == token then return redis.error_reply('FENCED the move was given up') end
if call('HGET', arrival, 'token') ~= token then
  if call('EXISTS', metadata) == 1 then return redis.error_reply('OCCUPIED the target has a queue of this name, too') end
  if call('EXISTS', messages, toack) > 0 then
    return redis.error_reply('OCCUPIED the target has messages of this name without a queue')
  end
  call('UNLINK', held_messages, held_toack)
  call('HSET', arrival, 'token', token)
  call('PERSIST', arrival)
end
return {math.floor(call('LLEN', held_messages) / 2), math.floor(call('LLEN', held_toack) / 2)}
