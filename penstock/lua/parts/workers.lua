-- Find out which of several lists have a worker that is alive. A call names, in one table, the lists, then what the
-- workers of each have in hand, then the registrations of each.
--
-- GIVES each_list has_worker

-- Iterate over the lists: the place of each, and the first and the last place of what its workers have in hand and of its
-- registrations. `groups` has three numbers a list: its weight, how many there are in hand, and how many registrations.
local function each_list(outs, groups)
  local place, hand, registration = 0, outs, outs
  for each = 1, outs do registration = registration + groups[3 * each - 1] end
  return function()
    place = place + 1
    if place > outs then return nil end
    local hands, found = {hand + 1, hand + groups[3 * place - 1]}, {registration + 1, registration + groups[3 * place]}
    hand, registration = hands[2], found[2]
    return place, hands, found
  end
end

-- Return true if one of the `lists` from `between[1]` to `between[2]` registers a worker: it exists, or, as a zset, it
-- holds the end of a lease (in us) that lies ahead. If `registered` is '0', every worker counts as alive.
local function has_worker(lists, between, registered, now)
  if registered == '0' then return true end
  for place = between[1], between[2] do
    local key = lists[place]
    local kind = redis.call('TYPE', key).ok
    if kind ~= 'none' and (kind ~= 'zset' or redis.call('ZCOUNT', key, string.format('%.0f', now * 1e6), '+inf') > 0) then
      return true
    end
  end
  return false
end
