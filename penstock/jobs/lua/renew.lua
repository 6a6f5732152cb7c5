-- Keep entries from being claimed by others.
--
-- KEYS stream     stream  jobs
-- ARGV group      whose entries they are
-- ARGV consumer   who has them
-- ARGV words...   two for each: entry and number of the attempt
-- Returns the entries that others have by now, or nobody, and those that were removed from the stream. Run twice: the same
-- again.
local lost, gone = {}, {}
for place = 1, #words, 2 do
  local entry, attempt = words[place], tonumber(words[place + 1])
  local owned = redis.call('XPENDING', stream, group, entry, entry, 1)[1]
  if not owned or owned[2] ~= consumer or owned[4] ~= attempt then
    lost[#lost + 1] = entry
  elseif #redis.call('XRANGE', stream, entry, entry) == 0 then
    gone[#gone + 1] = entry
  else
    redis.call('XCLAIM', stream, group, consumer, 0, entry, 'RETRYCOUNT', attempt, 'JUSTID')
  end
end
return {lost, gone}
