-- Push the next messages of one source unless they have arrived already. Runs on the server of `out`.
--
-- With a `door` it pushes none itself: it runs in a transaction with LPUSHX door message..., RPOP door, RENAMENX door out.
-- Until then `out` is called `door`, and has an empty message at its end, so that the list exists. If this script refuses
-- or fails, the other commands find no list. Messages do not go through Lua then, which copies each several times.
--
-- WITH types: wrong_type
-- KEYS out      list   gets the messages, the first at the tail
-- KEYS ledger   hash   `token sequence first digest at`: what has arrived from this source
-- KEYS door?    list   the name of `out` until the end of the transaction
-- ARGV token    the sender's fencing token; refused unless it is the last one that met
-- ARGV first    the number of the first message at its source
-- ARGV last     the number of the last one
-- ARGV digest   SHA-1 of those messages, recorded in the ledger
-- ARGV messages... what to push for them, which may be more or fewer
-- Returns the number of the last message that has arrived; less than `first` if some before them are missing.
-- Run twice: the second run pushes nothing.
local call = redis.call
local refused = wrong_type({list = {out}, hash = {ledger}})
if refused then return refused end
local holds = door and call('TYPE', door).ok or 'none'
if holds ~= 'none' then return redis.error_reply('WRONGTYPE ' .. door .. ' holds a ' .. holds .. ', expected nothing') end
local known = call('HMGET', ledger, 'token', 'sequence')
if known[1] ~= token then return redis.error_reply('FENCED ' .. ledger) end
local sequence = tonumber(known[2] or 0)
if sequence ~= first - 1 then return sequence end

-- A full or read-only server, or one that denies this user the right, refuses this write, before the messages. The rights
-- to the commands after the script were checked when the transaction was queued.
call('HSET', ledger, 'token', token)
if door and call('EXISTS', out) == 1 then
  call('RENAMENX', out, out) -- changes nothing, and needs the right to read `out`
  call('RPUSH', out, '')
  call('RENAMENX', out, door)
elseif door then
  call('RPUSH', door, '')
elseif #messages > 0 then
  call('LPUSH', out, unpack(messages, 1, #messages))
end
call('HSET', ledger, 'sequence', last, 'first', first, 'digest', digest, 'at', call('TIME')[1])
return tonumber(last)
