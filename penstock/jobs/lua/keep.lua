-- Read values of a dead job, as far as there is room for them.
--
-- KEYS keys...    string  values
-- ARGV most       maximum number of bytes of all together
-- Returns the value of each key; nil for one that is missing, too large or of another type. Run twice: the same again.
local found, left = {}, tonumber(most)
for place, key in ipairs(keys) do
  local size = redis.pcall('STRLEN', key)
  found[place] = type(size) == 'number' and size <= left and redis.call('GET', key)
  if found[place] then left = left - size end
end
return found
