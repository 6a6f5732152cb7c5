-- Check the types of all keys before the first write: a script that fails halfway has done half.
--
-- GIVES wrong_type length problem
local TYPE_OF = {LLEN = 'list', ZCARD = 'zset', XLEN = 'stream', HLEN = 'hash', STRLEN = 'string'}
local problem

local function type_error(key, found, expected)
  return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. found .. ', expected a ' .. expected)
end

-- Return the error for a key that exists with another type, or nil. `keys` has tables of names by type, without the nil;
-- `kinds`, if it is given, gets the type of each key.
local function wrong_type(keys, kinds)
  for expected, names in pairs(keys) do
    for _, key in pairs(names) do
      local found = redis.call('TYPE', key).ok
      if kinds then kinds[key] = found end
      if found ~= expected and found ~= 'none' then return type_error(key, found, expected) end
    end
  end
end

-- Return what `command` (see TYPE_OF) counts in `key`; 0 if `key` has another type, which sets `problem` to the error.
local function length(command, key)
  local found = redis.pcall(command, key)
  if type(found) == 'number' then return found end
  problem = type_error(key, redis.call('TYPE', key).ok, TYPE_OF[command])
  return 0
end
