-- Settle a batch whose buckets the caller has read: move messages that get a token to `out`, and the others to `waiting`,
-- where each waits for its own. All or none.
--
-- WITH lease
-- WITH types: wrong_type
-- WITH in_hand: take_read
-- WITH held: note keep
-- WITH tallies: tally write_tallies
-- WITH letters: push_letter
-- WITH bucket: now full_at due write_bucket
-- WITH forward: bring_forward
-- KEYS pending    list    what this instance has taken and not settled (oldest at the tail)
-- KEYS out        list    where messages go
-- KEYS waiting    zset    messages that wait, behind 16 digits each, by the time at which they get their token (us)
-- KEYS letters    list    dead letters, JSON
-- KEYS settled    hash    metric: messages that left the pending list and `waiting`
-- KEYS delivered  hash    metric: messages pushed
-- KEYS dead       hash    metric: dead letters
-- KEYS limited    hash    metric: messages over the limit
-- KEYS lease?     hash    owner token expires of the one active replica
-- KEYS buckets... string  when each is full again
-- ARGV token      the lease's fencing token that the caller holds
-- ARGV capacity   maximum number of messages that may wait when a batch comes
-- ARGV source     the list that messages come from
-- ARGV places...  for each message, oldest first, the place of its bucket, and behind a space its deadline (s) if it has one
-- Returns 1, or 0 if the pending list has changed, or -1 if too many wait; and the us until the next one in `waiting` gets
-- its token, -1 if none waits. Run twice: the second run does nothing.
local call = redis.call
local refused = wrong_type({list = {pending, out, letters}, zset = {waiting},
  hash = {holds, missing, taken, settled, delivered, dead, limited}})
if refused then return refused end
local waits = call('ZCARD', waiting)
local function reply(done)
  local first = call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  return {done, first and math.max(math.ceil(tonumber(first) - now), 0) or -1}
end
if waits >= tonumber(capacity) then return reply(-1) end
local at, wrong = {}
for place, key in ipairs(buckets) do
  at[place], wrong = full_at(key, now + (burst + waits) * interval)
  if wrong then return wrong end
end
-- A server whose memory is full refuses only a script's first write: meet that here.
local full = redis.pcall('LMOVE', pending, pending, 'RIGHT', 'RIGHT')
if type(full) == 'table' then return full end
local messages = take_read(#places)
if not messages then return reply(0) end
note(pending, held)
note(waiting, waits)
bring_forward(now, interval)

local passing, delayed, expired, over = {}, 0, 0, 0
-- While some are due and not yet moved, let no message overtake them.
local overdue = call('ZCOUNT', waiting, '-inf', now) > 0

local function delay(message, moment)
  local number = now + delayed
  while call('ZADD', waiting, 'NX', moment, string.format('%016.0f', number) .. message) == 0 do number = number + 1 end
  delayed = delayed + 1
end

for number, message in ipairs(messages) do
  local place, deadline = tonumber(places[number])
  if not place then
    local word, moment = string.match(places[number], '^(%d+) (.*)$')
    place, deadline = tonumber(word), tonumber(moment)
  end
  local moment = due(at[place])
  if deadline and math.max(moment, now) > deadline * 1e6 then
    push_letter({message = message, reason = 'expired', source = source, attempts = 1, at = math.floor(now / 1000)})
    expired = expired + 1
  else
    at[place] = at[place] + interval
    if moment > now then over = over + 1 end
    if overdue or moment > now then delay(message, moment) else passing[#passing + 1] = message end
  end
end
for place, key in ipairs(buckets) do write_bucket(key, at[place]) end
if #passing > 0 then call('LPUSH', out, unpack(passing, 1, #passing)) end

keep(pending, held, held - #messages)
keep(waiting, waits, waits + delayed)
tally(settled, 'count', #passing + expired)
tally(limited, 'count', over)
for _, each in ipairs({{out, delivered, #passing}, {source, dead, expired}}) do
  tally(taken, each[1], each[3])
  tally(each[2], each[1], each[3])
  tally(each[2], 'count', each[3])
end
write_tallies()
return reply(1)
