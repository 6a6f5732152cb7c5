-- Delete a list that is no output any more; its messages count as dropped by the services that filled it.
--
-- WITH types: wrong_type
-- KEYS list         list   the output
-- KEYS notes        hash   by list that has changed, what has become of it
-- KEYS counters...  hash   two of each service that fills the list: delivered dropped
-- Returns how many messages were deleted. Run twice: the second run deletes what has arrived since.
local call = redis.call
local refused = wrong_type({list = {list}, hash = {notes, unpack(counters, 1, #counters)}})
if refused then return refused end

local deleted = call('LLEN', list)
local left = deleted
call('UNLINK', list)
call('HDEL', notes, list)
for place = 1, #counters, 2 do
  local delivered, dropped = counters[place], counters[place + 1]
  local here = math.min(left, tonumber(call('HGET', delivered, list) or 0) or 0)
  local gone, back = string.format('%.0f', here), string.format('%.0f', -here)
  if here > 0 and type(redis.pcall('HINCRBY', dropped, list, gone)) == 'number' then
    redis.pcall('HINCRBY', dropped, 'count', gone)
    redis.pcall('HINCRBY', delivered, list, back)
    redis.pcall('HINCRBY', delivered, 'count', back)
    left = left - here
  end
end
return deleted
