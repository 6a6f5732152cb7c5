-- Read numbers that others have written: ids, times, times to live.
--
-- GIVES whole countable finite MAX_ID MAX_TTL
local MAX_ID, MAX_TTL = 2 ^ 53 - 1, 1e9

-- Return `word` as a number; nil unless it is decimal digits only, at most `most`.
local function whole(word, most)
  local number = type(word) == 'string' and #word <= 16 and string.find(word, '^%d+$') and tonumber(word)
  return number and number <= most and number or nil
end

-- Return the value of a counter as a number; nil if INCRBY refuses to add `more` to it. `word` is false if there is none.
local function countable(word, more)
  local number = not word and 0 or not string.find(word, '^0%d') and whole(word, MAX_ID)
  return number and number + more <= MAX_ID and number or nil
end

-- Return `word` as a number; nil if it is none, infinite, or not a number (nan).
local function finite(word)
  local number = tonumber(word)
  return number and number - number == 0 and number or nil
end
