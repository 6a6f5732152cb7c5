-- Read values of jobs up to a number of bytes.
--
-- KEYS keys...    string  values
-- ARGV most       bytes after which no further value is read
-- Returns the values of the first keys, at least of one; nil for one that is missing or of another type. Run twice: the same.
local found, size = {}, 0
for place, key in ipairs(keys) do
  local value = redis.pcall('GET', key)
  found[place] = type(value) == 'string' and value
  size = size + (found[place] and #value or 0)
  if size >= tonumber(most) then break end
end
return found
