-- Keep entries from being claimed by others.
--
-- KEYS stream     stream  jobs
-- ARGV group      whose entries they are
-- ARGV consumer   who has them
-- ARGV words...   two for each: entry and number of the attempt
-- Returns the entries that others have by now, or nobody. Run twice: the same again.
local lost = {}
for place = 1, #words, 2 do
  local entry, attempt = words[place], tonumber(words[place + 1])
  local owned = redis.call('XPENDING', stream, group, entry, entry, 1)[1]
  if owned and owned[2] == consumer and owned[4] == attempt then
    redis.call('XCLAIM', stream, group, consumer, 0, entry, 'RETRYCOUNT', attempt, 'JUSTID')
  else
    lost[#lost + 1] = entry
  end
end
return lost
