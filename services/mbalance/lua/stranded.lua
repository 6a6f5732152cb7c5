-- Count what waits where no worker is alive, if another list has one.
--
-- WITH types: length problem
-- WITH workers: each_list has_worker
-- KEYS lists...    list   the lists to choose from
-- ARGV outs        how many lists there are to choose from
-- ARGV registered  1 if a list without a registration has no worker that is alive, else 0
-- ARGV groups...   for each list: its weight, and the names of what its workers have in hand, and of their registrations
-- Returns how many messages wait so. Run twice: the same again.
local time = redis.call('TIME')
local now, alive, stranded = time[1] + time[2] / 1e6, 0, 0
for place, _, _, registrations in each_list(tonumber(outs), groups) do
  local list = lists[place]
  if has_worker(groups, registrations, registered, now) then alive = alive + 1
  else stranded = stranded + length('LLEN', list) end
end
return problem or alive > 0 and stranded or 0
