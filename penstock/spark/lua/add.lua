-- Add to fields of hashes the amounts in the oldest staged rows, and remove those rows. All or none.
--
-- WITH types: wrong_type
-- KEYS staged     list   rows of one task, the first at the tail
-- KEYS hashes...  hash   one for each of the oldest rows, in their order; one hash may be there several times
-- ARGV left       how many rows are staged, as the caller knows it
-- ARGV life       TTL of each hash from now on (s); 0 leaves it as it is
-- ARGV words...   a row: how many fields, then field and amount in turns; an amount with a point or an e is a float
-- Returns how many rows are still staged. Run twice: the second run adds nothing.
local LARGEST, INTEGER = 9.2e18, '^-?%d+$'
local call = redis.call
local here = call('LLEN', staged)
if here ~= tonumber(left) then return here end

local function each(act)
  local place = 1
  for _, key in ipairs(hashes) do
    local fields = tonumber(words[place])
    for field = place + 1, place + 2 * fields, 2 do
      local failed = act(key, words[field], words[field + 1])
      if failed then return failed end
    end
    place = place + 2 * fields + 1
  end
end

-- Refuse before anything is added what would fail halfway.
local refused = wrong_type({hash = hashes}) or each(function(key, field, amount)
  local value = call('HGET', key, field) or '0'
  local number, whole = tonumber(value), string.find(amount, INTEGER)
  local right = number and not string.find(value, '[%sxX]') and math.abs(number) + math.abs(amount) < math.huge
  if whole then
    right = right and string.find(value, INTEGER) and not string.find(value, '^-?0%d') and value ~= '-0'
      and math.abs(number) + math.abs(amount) < LARGEST
  end
  if not right then
    local kind = whole and 'a whole number' or 'a number'
    return redis.error_reply('VALUE ' .. key .. ': field ' .. field .. ': cannot add ' .. amount .. ' to '
      .. string.format('%q', value) .. ', expected ' .. kind .. ' within its range')
  end
end)
if refused then return refused end

each(function(key, field, amount)
  call(string.find(amount, INTEGER) and 'HINCRBY' or 'HINCRBYFLOAT', key, field, amount)
end)
if life ~= '0' then
  for _, key in ipairs(hashes) do call('EXPIRE', key, life) end
end
call('LTRIM', staged, 0, -#hashes - 1)
return here - #hashes
