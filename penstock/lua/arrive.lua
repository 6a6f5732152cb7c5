-- Push the next messages of one source, unless they are here already: runs on the server of `out`.
--
-- With a `door` it pushes the first ones of many, in a transaction with LPUSHX door message..., RENAMENX door out: until
-- then `out` is called `door`. Where this script refuses, or fails, the others find nothing to push to; and not every
-- message has to go through Lua, which costs more than pushing it.
--
-- KEYS out      list   gets the messages, the first at the tail
-- KEYS ledger   hash   `token sequence first digest at`: what arrived from this source
-- KEYS door?    list   what `out` is called until the end of the transaction
-- ARGV token    the fencing token of the sender, who is refused unless it is the last one that met
-- ARGV first    the number of the first message at its source
-- ARGV last     the number of the last one
-- ARGV digest   SHA-1 of those messages, to be remembered
-- ARGV messages... what to push for them, which may be more or fewer
-- Returns the number of the last message that is here; one below `first` where some before them are missing.
-- Run twice: the second run pushes nothing.
local call = redis.call
for key, kind in pairs({[out] = 'a list', [ledger] = 'a hash', [door or ''] = door and 'nothing'}) do
  local found = call('TYPE', key).ok
  if 'a ' .. found ~= kind and found ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. found .. ', expected ' .. kind)
  end
end
local known = call('HMGET', ledger, 'token', 'sequence')
if known[1] ~= token then return redis.error_reply('FENCED ' .. ledger) end
local sequence = tonumber(known[2] or 0)
if sequence ~= first - 1 then return sequence end

-- What cannot be written (a full or read-only server, a user without the right) is refused here, before the messages;
-- and what a user must have the right to do after RENAMENX was looked at when the transaction was queued.
call('HSET', ledger, 'token', token)
if door and call('EXISTS', out) == 1 then
  call('RENAMENX', out, door)
  call('LPUSHX', door, unpack(messages, 1, #messages))
elseif #messages > 0 then
  call('LPUSH', door or out, unpack(messages, 1, #messages))
end
call('HSET', ledger, 'sequence', last, 'first', first, 'digest', digest, 'at', call('TIME')[1])
return tonumber(last)
