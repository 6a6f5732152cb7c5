-- Correct the counters of a namespace by its lists after instances of an older version, which count a message only when
-- it is settled, and take over lists without a change of `holds`.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH held: keep
-- KEYS settled?  hash  metric: messages that left the pending lists; left out if the service keeps none
-- KEYS start     hash  metric: starts; `agreed`: starts of older versions after which the counters agree
-- KEYS lists...  list  pending lists that an older instance may have emptied
-- ARGV totals    how many of `lists`, the first ones, hold what `taken` counts
-- ARGV older     the new value of `agreed`; empty while an older instance is alive
-- Returns how many messages were counted in a list and are gone. Run twice: the second run changes nothing.
local call = redis.call
local refused = wrong_type({hash = {holds, missing, taken, settled, start}})
if refused then return refused end

-- An older instance has counted them, too, when it settled them.
local gone, twice = 0, 0
for place, list in ipairs(lists) do
  local here, counted = redis.pcall('LLEN', list), tonumber(call('HGET', holds, list) or 0)
  if type(here) == 'number' and counted and counted > here then
    keep(list, counted, here)
    gone = gone + counted - here
    if place <= tonumber(totals) then twice = twice + counted - here end
  end
end
local all = tonumber(call('HGET', taken, 'count') or 0)
if all and twice > 0 then
  all = all - twice
  call('HSET', taken, 'count', string.format('%d', all))
end
if all and settled then
  local held = tonumber(call('HGET', missing, 'count') or 0) or 0
  for _, number in ipairs(call('HVALS', holds)) do held = held + (tonumber(number) or 0) end
  call('HSET', settled, 'count', string.format('%d', math.max(all - held, 0)))
end
if older ~= '' then call('HSET', start, 'agreed', older) end
return gone
