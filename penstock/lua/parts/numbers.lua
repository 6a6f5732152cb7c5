-- Read numbers that others have written: ids, times to live.
--
-- GIVES whole MAX_ID MAX_TTL
local MAX_ID, MAX_TTL = 2 ^ 53 - 1, 1e9

-- Return `word` as a number; nil unless it is decimal digits only, at most `most`.
local function whole(word, most)
  local number = type(word) == 'string' and #word <= 16 and string.find(word, '^%d+$') and tonumber(word)
  return number and number <= most and number or nil
end
