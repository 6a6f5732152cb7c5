-- Count what waits where no worker is alive, if another list has one.
--
-- WITH types: length problem
-- WITH workers: each_list has_worker
-- KEYS lists...    list   `outs` lists, then what their workers have in hand, then their registrations (of any type)
-- ARGV outs        how many lists there are to choose from
-- ARGV registered  1 if a list without a registration has no worker that is alive, else 0
-- ARGV groups...   for each list: its weight, how many lists its workers have in hand, how many registrations
-- Returns how many messages wait so. Run twice: the same again.
local time = redis.call('TIME')
local now, alive, stranded = time[1] + time[2] / 1e6, 0, 0
for place, _, registrations in each_list(tonumber(outs), groups) do
  local list = lists[place]
  if has_worker(lists, registrations, registered, now) then alive = alive + 1
  else stranded = stranded + length('LLEN', list) end
end
return problem or alive > 0 and stranded or 0
