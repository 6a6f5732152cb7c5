-- Find out which of several lists have a worker that is alive. What workers have in hand, and their registrations, are only
-- read, so a call names them among its arguments: as keys of a script they would need the right to be written.
--
-- GIVES each_list has_worker

-- Iterate over the lists: the place of each, its weight, and the first and the last place in `groups` of the names of what
-- its workers have in hand, and of its registrations. `groups` has for each list its weight, how many there are in hand, how
-- many registrations, the names of the former, and for each registration its name and that of the hash which says who of its
-- members is gone.
local function each_list(outs, groups)
  local place, first = 0, 1
  return function()
    place = place + 1
    if place > outs then return nil end
    local hands = {first + 3, first + 2 + groups[first + 1]}
    local found = {hands[2] + 1, hands[2] + 2 * groups[first + 2]}
    local weight = tonumber(groups[first])
    first = found[2] + 1
    return place, weight, hands, found
  end
end

-- Return true if one of the registrations in `groups` from `between[1]` to `between[2]` is of a worker: it exists and does not
-- say that it is not ready, or, as a zset, it holds the end of a lease (in us) that lies ahead, of a member that is not gone. If `registered` is '0', every
-- worker counts as alive.
local function has_worker(groups, between, registered, now)
  if registered == '0' then return true end
  for place = between[1], between[2], 2 do
    local key = groups[place]
    local kind = redis.call('TYPE', key).ok
    local said = kind == 'hash' and redis.call('HMGET', key, 'ready', 'service') or {}
    local unready = said[1] == '0' or not said[1] and said[2] == 'sregister'
    if kind ~= 'none' and kind ~= 'zset' and not unready then return true end
    local members = kind == 'zset' and redis.call('ZRANGEBYSCORE', key, string.format('%.0f', now * 1e6), '+inf') or {}
    for _, member in ipairs(members) do
      key = groups[place + 1]
      local state = redis.pcall('HGET', key, member)
      if type(state) ~= 'string' or string.sub(state, 1, 5) ~= 'gone:' then return true end
    end
  end
  return false
end
