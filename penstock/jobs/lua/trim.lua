-- Remove entries from a stream that all of its groups have done, and consumers from a group that have died.
--
-- KEYS stream     stream  jobs
-- ARGV group      whose consumers are removed
-- ARGV prefix     what their names begin with
-- ARGV consumer   one that has not died
-- ARGV silent     how long the others have not been heard of, and have nothing in hand (ms)
-- Returns how many entries were removed; about a hundred may stay. Run twice: nothing more.
local call = redis.call
if call('TYPE', stream).ok ~= 'stream' then return 0 end

-- Return the smaller one of two ids of entries.
local function less(one, other)
  if not one then return other end
  local ms, seq = string.match(one, '(%d+)-(%d+)')
  local ms2, seq2 = string.match(other, '(%d+)-(%d+)')
  if tonumber(ms) < tonumber(ms2) or (ms == ms2 and tonumber(seq) < tonumber(seq2)) then return one end
  return other
end

local first
for _, of in ipairs(call('XINFO', 'GROUPS', stream)) do
  local found = {}
  for place = 1, #of, 2 do found[of[place]] = of[place + 1] end
  local oldest = found['last-delivered-id']
  if found.pending > 0 then oldest = less(oldest, call('XPENDING', stream, found.name)[2]) end
  first = less(first, oldest)
  if found.name == group then
    for _, each in ipairs(call('XINFO', 'CONSUMERS', stream, group)) do
      local one = {}
      for place = 1, #each, 2 do one[each[place]] = each[place + 1] end
      if one.pending == 0 and one.idle > tonumber(silent) and one.name ~= consumer
        and string.sub(one.name, 1, #prefix) == prefix then
        call('XGROUP', 'DELCONSUMER', stream, group, one.name)
      end
    end
  end
end
if not first then return 0 end
return call('XTRIM', stream, 'MINID', '~', first)
