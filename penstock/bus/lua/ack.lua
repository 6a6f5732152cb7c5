-- Forget messages that are acknowledged: all up to an id.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH relocation: leaving gone
-- WITH numbers: whole MAX_ID
-- KEYS metadata  hash  what the queue is; an error if it and `toack` are missing; `last_consumer`: who took the lease last
--                       `restored`: the highest id that was given back last
-- KEYS toack   list    id, body, id, body, ...: what was handed out and not acknowledged (ids ascending)
-- KEYS lease?  string  who consumes alone
-- KEYS messages? list  as `toack`: what waits; a late restore.lua may have put back there what is acknowledged now
-- ARGV who     the caller; nothing is forgotten if `lease` has another, or another had it last
-- ARGV last    the id
-- ARGV handed  the last id that the caller has handed out; up to that, what waits is forgotten if it took the lease last
-- ARGV ttl     seconds that `toack` lives
-- ARGV most    maximum number of messages to forget
-- Returns how many were forgotten: if it is `most`, call again. Run twice: the second run finds nothing.
local call = redis.call
local refused = wrong_type({hash = {metadata}, list = {toack, messages}, string = {lease}}) or leaving(metadata)
if not refused and call('EXISTS', toack) == 0 then refused = gone(metadata) end
if refused then return refused end
local holder = lease and call('GET', lease)
local last_one = lease and call('HGET', metadata, 'last_consumer')
if holder and holder ~= who or last_one and last_one ~= who then
  return redis.error_reply('FENCED another consumer has, or has had, the queue')
end
local forgotten = 0
last, most = tonumber(last), tonumber(most)
local function forget(key, least, upto)
  while forgotten < most do
    local id = call('LINDEX', key, 0)
    local number = id and whole(id, MAX_ID) or 0
    if not id or number < least or number > upto then break end
    call('LPOP', key, 2)
    forgotten = forgotten + 1
  end
end
forget(toack, 0, last)
if messages and last_one == who then
  local restored = whole(call('HGET', metadata, 'restored') or '0', MAX_ID) or 0  -- above it, a server that has lost ids gives them again
  forget(messages, 1, math.min(last, tonumber(handed), restored))
end
call('EXPIRE', toack, ttl)
return forgotten
