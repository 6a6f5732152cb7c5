-- Send a dead job again, for the group whose attempts were used up. Other groups that are through pass over it.
--
-- WITH types: wrong_type
-- KEYS dead       stream  jobs whose attempts are used up
-- KEYS stream     stream  jobs
-- KEYS keys...    string  values
-- ARGV letter     entry of the dead job
-- ARGV group      the group
-- ARGV ttl        how long the values are kept at least (ms)
-- ARGV fields     the fields of the new entry, as JSON: an array of texts
-- ARGV words...   the value of each key, which is set if it is gone
-- Returns the id of the new entry, or nil if there is no such dead job. Run twice: nil.
local call = redis.call
local refused = wrong_type({stream = {dead, stream}})
if refused then return refused end
if not call('XRANGE', dead, letter, letter)[1] then return false end
for place, key in ipairs(keys) do
  local left = call('PTTL', key)
  if left == -2 then
    call('SET', key, words[place], 'PX', ttl)
  elseif left >= 0 and left < tonumber(ttl) then
    call('PEXPIRE', key, ttl)
  end
end

-- Return the array of names and values as a table.
local function named(array)
  local found = {}
  for place = 1, #array, 2 do found[array[place]] = array[place + 1] end
  return found
end

local groups, last = {}, ''
if call('TYPE', stream).ok == 'stream' then
  groups, last = call('XINFO', 'GROUPS', stream), named(call('XINFO', 'STREAM', stream))['last-generated-id']
end
local decoded = cjson.decode(fields)
local entry = call('XADD', stream, '*', unpack(decoded, 1, #decoded))
for _, each in ipairs(groups) do
  local found = named(each)
  if found.name ~= group and found['last-delivered-id'] == last then
    if found['entries-read'] then
      call('XGROUP', 'SETID', stream, found.name, entry, 'ENTRIESREAD', found['entries-read'] + 1)
    else
      call('XGROUP', 'SETID', stream, found.name, entry)
    end
  end
end
call('XDEL', dead, letter)
return entry
