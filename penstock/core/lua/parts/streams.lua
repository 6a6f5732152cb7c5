-- What commands reply about streams and their groups.
--
-- GIVES named is_after
-- Return what an array of names and values in turn says, as a table.
local function named(words_)
  local found = {}
  for place = 1, #words_, 2 do found[words_[place]] = words_[place + 1] end
  return found
end

-- Return whether the id `one` of an entry is greater than `other`.
local function is_after(one, other)
  local ms, seq = string.match(one, '(%d+)-(%d+)')
  local ms2, seq2 = string.match(other, '(%d+)-(%d+)')
  return tonumber(ms) > tonumber(ms2) or (ms == ms2 and tonumber(seq) > tonumber(seq2))
end
