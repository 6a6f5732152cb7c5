-- Set, read and delete values of a job, all or none.
--
-- WITH types: wrong_type
-- KEYS keys...    string  values
-- ARGV words...   three for each key: set, get or del; the value; how long it is kept (ms; 0: for ever)
-- Returns the values of all that were to be read, nil for one that is missing. Run twice: the same again, except for what
-- was deleted.
local found, count, read = {}, 0, {}
for place, key in ipairs(keys) do
  if words[place * 3 - 2] == 'get' then read[#read + 1] = key end
end
local refused = wrong_type({string = read})
if refused then return refused end
for place, key in ipairs(keys) do
  local verb, value, ttl = unpack(words, place * 3 - 2, place * 3)
  if verb == 'get' then
    count = count + 1
    found[count] = redis.call('GET', key)
  elseif verb == 'del' then
    redis.call('DEL', key)
  elseif ttl == '0' then
    redis.call('SET', key, value)
  else
    redis.call('SET', key, value, 'PX', ttl)
  end
end
return found
