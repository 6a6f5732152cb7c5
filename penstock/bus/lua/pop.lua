-- Take the oldest messages of a queue; keep them in `toack` until they are acknowledged, if that is given. If its newest is
-- not the last that the caller got, take nothing: a reply was lost, or somebody else has consumed.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH sampling: several saw
-- WITH relocation: leaving gone
-- WITH numbers: whole MAX_ID
-- KEYS metadata  hash    what the queue is; an error if it and the messages are missing
-- KEYS messages  list    id, body, id, body, ... (oldest at the head)
-- KEYS toack?    list    as `messages`: what was handed out and not acknowledged
-- KEYS lease?    string  who consumes alone
-- ARGV who       the caller; nothing is taken if `lease` has another, and it is taken again if nobody has it
-- ARGV seconds   the lease
-- ARGV ttl       seconds that `toack` lives
-- ARGV most      maximum number of messages to take
-- ARGV bytes     take no more once they have this many bytes together
-- ARGV last      id of the last message that the caller got
-- Returns how many messages remain, then lists of several, id and body of each; only -1 if `toack` has others than the
-- caller knows. A pair whose id is none is not kept in `toack`: nobody could acknowledge it. Run twice: the second run takes the next ones, but none if there is `toack`.
local call = redis.call
local refused = wrong_type({hash = {metadata}, list = {messages, toack}, string = {lease}}) or leaving(metadata)
if refused then return refused end
local holder = lease and call('GET', lease)
if holder and holder ~= who then return redis.error_reply('FENCED another consumer has the queue') end
local newest = toack and call('LINDEX', toack, -2)
local known = whole(newest, MAX_ID) or 0
local others = newest and (known == 0 or known ~= tonumber(last))
local waiting, taken, found = math.floor(call('LLEN', messages) / 2), 0, {0}
if waiting == 0 and not others then
  refused = gone(metadata)
  if refused then return refused end
end
if lease then call('SET', lease, who, 'EX', seconds) end
if others then return {-1} end
most, bytes = math.min(tonumber(most), waiting), tonumber(bytes)
local function keep(words)
  local kept = {}
  for place = 1, #words, 2 do
    if (whole(words[place], MAX_ID) or 0) > 0 then kept[#kept + 1], kept[#kept + 2] = words[place], words[place + 1] end
  end
  if #kept > 0 then call('RPUSH', toack, unpack(kept, 1, #kept)) end
end
local count = several(messages, 0, most, bytes)
while count > 0 do
  local words = call('LPOP', messages, 2 * count)
  if toack then keep(words) end
  saw(words)
  found[#found + 1], taken = words, taken + count
  count = several(messages, 0, most - taken, bytes)
end
if toack and taken > 0 then call('EXPIRE', toack, ttl) end
found[1] = waiting - taken
return found
