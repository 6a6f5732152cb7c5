-- Remove entries from a stream that all of its groups have done, and consumers from a group that have died.
--
-- WITH streams: named is_after
-- KEYS stream     stream  jobs
-- ARGV group      whose consumers are removed
-- ARGV prefix     what their names begin with
-- ARGV consumer   one that has not died
-- ARGV silent     how long the others have not been heard of, and have nothing in hand (ms)
-- Returns how many entries were removed; about a hundred may stay. Run twice: nothing more.
local call = redis.call
if call('TYPE', stream).ok ~= 'stream' then return 0 end

local first
for _, of in ipairs(call('XINFO', 'GROUPS', stream)) do
  local found = named(of)
  local oldest = found['last-delivered-id']
  if found.pending > 0 then
    local pending = call('XPENDING', stream, found.name)[2]
    if is_after(oldest, pending) then oldest = pending end
  end
  if not first or is_after(first, oldest) then first = oldest end
  if found.name == group then
    for _, each in ipairs(call('XINFO', 'CONSUMERS', stream, group)) do
      local one = named(each)
      if one.pending == 0 and one.idle > tonumber(silent) and one.name ~= consumer
        and string.sub(one.name, 1, #prefix) == prefix then
        call('XGROUP', 'DELCONSUMER', stream, group, one.name)
      end
    end
  end
end
if not first then return 0 end
return call('XTRIM', stream, 'MINID', '~', first)
