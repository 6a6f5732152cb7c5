-- Give back what was handed out and not acknowledged: it is the next to be taken, in order; so is what has no id. If it is to begin consumption,
-- take the lease on the queue, or refuse if another has it.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH relocation: leaving gone
-- WITH numbers: whole MAX_ID
-- KEYS metadata  hash    what the queue is; an error if it and `toack` are missing; `last_consumer`: who took the lease last
--                `restored`: the highest id that is given back for a consumer of that kind
-- KEYS toack     list    id, body, id, body, ...: what was handed out and not acknowledged (ids ascending)
-- KEYS messages  list    as `toack`: what waits
-- KEYS lease     string  who consumes alone, if anybody does
-- ARGV who       the caller
-- ARGV seconds   the lease, taken or renewed; 0 takes none
-- ARGV first     the smallest id to give back
-- ARGV ttl       seconds that both lists live
-- ARGV most      maximum number of messages to give back
-- ARGV channel   where consumers hear of them
-- Returns how many were given back: if it is `most`, call again. Run twice: the second run finds nothing.
local call = redis.call
local refused = wrong_type({hash = {metadata}, list = {toack, messages}, string = {lease}}) or leaving(metadata)
if not refused and call('EXISTS', toack) == 0 then refused = gone(metadata) end
if refused then return refused end
local holder = call('GET', lease)
if holder and holder ~= who then
  return redis.error_reply('OCCUPIED ' .. lease .. ': another consumer has the queue for ' .. call('TTL', lease) .. ' s more')
end
if tonumber(seconds) > 0 then
  call('SET', lease, who, 'EX', seconds)
  if call('EXISTS', metadata) == 1 then call('HSET', metadata, 'last_consumer', who) end
end
local back, highest = 0, 0
first, most = tonumber(first), tonumber(most)
while back < most do
  local id = call('LINDEX', toack, -2)
  local number = whole(id, MAX_ID) or 0
  if not id or number > 0 and number < first then break end
  highest = math.max(highest, number)
  for _ = 1, 2 do call('LMOVE', toack, messages, 'RIGHT', 'LEFT') end
  back = back + 1
end
if back > 0 then
  if highest > 0 and call('HEXISTS', metadata, 'last_consumer') == 1 then
    call('HSET', metadata, 'restored', string.format('%.0f', highest))
  end
  call('EXPIRE', messages, ttl)
  call('EXPIRE', toack, ttl)
  call('PUBLISH', channel, '0')
end
return back
