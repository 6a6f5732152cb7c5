-- Keep the chain of messages with one xid: a hash with `id` (the oldest), `last` (the newest of several), `type` (of the
-- xid), `next:<id>`, `before:<id>`, and `replyTo:<id>` (the list for its answer); `dead` if its message is a dead letter.
--
-- GIVES link unlink

-- Append message `id` to the chain `key`; return true, or nil if `key` is no hash. The caller sets the TTL.
local function link(key, id, kind, answer)
  if redis.pcall('HSETNX', key, 'id', id) == 1 then
    redis.call('HSET', key, 'type', kind)
  else
    local chain = redis.pcall('HMGET', key, 'id', 'last', 'dead')
    if chain.err then return end
    local last = chain[2] or chain[1]
    if chain[3] then
      redis.call('DEL', key)
      redis.call('HSET', key, 'id', id, 'type', kind)
    else
      redis.call('HSET', key, 'last', id, 'next:' .. last, id, 'before:' .. id, last)
    end
  end
  if answer then redis.call('HSET', key, 'replyTo:' .. id, answer) end
  return true
end

-- Remove message `id` from the chain `key`; return the type of the xid, or nil if `key` is no hash.
local function unlink(key, id)
  local chain = redis.pcall('HMGET', key, 'id', 'last', 'next:' .. id, 'before:' .. id, 'type')
  if chain.err then return end
  local after, before = chain[3], chain[4]
  if chain[1] == id and not after then
    redis.call('DEL', key)
  elseif chain[1] == id or before then
    if chain[1] == id then redis.call('HSET', key, 'id', after) end
    if chain[2] == id then redis.call('HSET', key, 'last', before) end
    if before and after then redis.call('HSET', key, 'next:' .. before, after, 'before:' .. after, before)
    elseif before then redis.call('HDEL', key, 'next:' .. before)
    elseif after then redis.call('HDEL', key, 'before:' .. after) end
    redis.call('HDEL', key, 'next:' .. id, 'before:' .. id, 'replyTo:' .. id)
  end
  return chain[5]
end
