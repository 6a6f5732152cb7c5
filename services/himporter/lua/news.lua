-- Return what is new of accepted requests.
--
-- KEYS replies   zset  lists of answers, by the time (s since the epoch) from which on they may be removed
-- KEYS lists...  list  progress and answer of a request, the oldest at the tail
-- ARGV most      maximum number of messages to return of a list
-- ARGV seen...   how many messages of each list the caller has read
-- Returns for each list its next messages, the newest first; 0 if it is not kept, or is no list. Run twice: the second
-- run returns the same, and what has come since.
local found = {}
for place, list in ipairs(lists) do
  local first = seen[place] + 1
  local messages = redis.call('ZSCORE', replies, list) and redis.pcall('LRANGE', list, -(first + most - 1), -first)
  found[place] = messages and not messages.err and messages or 0
end
return found
