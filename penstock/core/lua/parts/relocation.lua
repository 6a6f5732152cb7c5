-- Refuse calls to a queue of a bus that is being moved to another server, or was moved: see penstock/bus/move/__init__.py.
--
-- GIVES leaving gone

-- Return an error if the queue whose metadata is `key` is being moved, or nil.
local function leaving(key)
  if redis.call('HEXISTS', key, 'moving') == 1 then
    return redis.error_reply('MOVING the queue is being moved to another server')
  end
end

-- Return an error if the queue whose metadata is `key` does not exist, or nil.
local function gone(key)
  if redis.call('EXISTS', key) == 0 then
    return redis.error_reply('GONE the queue does not exist (any more): attach to it')
  end
end
