-- Part of the scripts that look at every key before their first write: a script that fails halfway has done half.
--
-- Returns nothing by itself. Run twice: as the script does that it is part of.

-- The error for a key of another type than its own; nil if there is none. `keys` has lists of names by type; those that
-- are nil are left out.
local function wrong_type(keys)
  for kind, names in pairs(keys) do
    for _, key in pairs(names) do
      local found = redis.call('TYPE', key).ok
      if found ~= kind and found ~= 'none' then
        return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. found .. ', expected a ' .. kind)
      end
    end
  end
end
