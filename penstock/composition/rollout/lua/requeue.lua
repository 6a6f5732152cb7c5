-- Write the new name of a list into the records of messages in flight, so that they are delivered again to it.
--
-- KEYS records...  hash   of tracked messages; `queue` is the list that each was delivered to
-- ARGV former      the old name
-- ARGV present     the new name
-- Returns how many records were changed. Run twice: the second run finds none of those.
local changed = 0
for _, record in ipairs(records) do
  if redis.pcall('HGET', record, 'queue') == former then
    redis.call('HSET', record, 'queue', present)
    changed = changed + 1
  end
end
return changed
