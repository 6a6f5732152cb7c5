-- Push requests and count them.
--
-- WITH types: wrong_type
-- KEYS out          list  requests (newest at the head)
-- KEYS taken        hash  metric: requests that were accepted; by list those that are owed to it
-- KEYS settled      hash  metric: requests that were pushed
-- KEYS delivered    hash  metric: the same by list
-- ARGV large        how many requests the transaction of this call has pushed before: a script would copy them twice
-- ARGV messages...  the requests, oldest first
-- Returns how many were pushed. If a key has another type, takes those back. Run twice: the second run pushes them again.
local STEP = 1000
local call = redis.call
local refused = wrong_type({list = {out}, hash = {taken, settled, delivered}})
if refused then
  if tonumber(large) > 0 then redis.pcall('LTRIM', out, large, -1) end
  return refused
end
for first = 1, #messages, STEP do
  call('LPUSH', out, unpack(messages, first, math.min(first + STEP - 1, #messages)))
end
local many = large + #messages
redis.pcall('HINCRBY', taken, 'count', many)
redis.pcall('HINCRBY', taken, out, many)
redis.pcall('HINCRBY', settled, 'count', many)
redis.pcall('HINCRBY', delivered, 'count', many)
redis.pcall('HINCRBY', delivered, out, many)
return many
