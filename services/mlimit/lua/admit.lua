-- Take a token for each message from its bucket, and say which messages are over the limit.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- WITH bucket: now full_at due write_bucket
-- KEYS limited     hash    metric: messages over the limit
-- KEYS buckets...  string  when each is full again
-- ARGV places...   for each message the place of its bucket, oldest message first
-- Returns for each message the seconds, rounded up, until there is a token; 0 if it got one. Run twice: the second run takes
-- more tokens.
local refused = wrong_type({hash = {limited}})
if refused then return refused end
local at, waits, over, wrong = {}, {}, 0
for place, key in ipairs(buckets) do
  at[place], wrong = full_at(key, now + burst * interval)
  if wrong then return wrong end
end
for number, word in ipairs(places) do
  local place = tonumber(word)
  local wait = due(at[place]) - now
  waits[number] = wait > 0 and math.ceil(wait / 1e6) or 0
  if wait > 0 then over = over + 1 else at[place] = at[place] + interval end
end
for place, key in ipairs(buckets) do write_bucket(key, at[place]) end
if over > 0 then redis.pcall('HINCRBY', limited, 'count', over) end
return waits
