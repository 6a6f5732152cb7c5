-- Return a page that is kept; if there is none, mark it as asked, so that a page that is cleared meanwhile is not kept.
--
-- WITH types: wrong_type
-- KEYS page    string  lines: a time, JSON, the body; only the time if it is a mark
-- ARGV expire  how long a mark lives (s)
-- Returns what `page` holds, and the time (s since the epoch). Run twice: the second run finds the mark.
local call = redis.call
local refused = wrong_type({string = {page}})
if refused then return refused end
local time = call('TIME')
local now = string.format('%d.%06d', time[1], time[2])
local found = call('GET', page)
if not found then
  found = now .. '\n'
  call('SET', page, found, 'EX', expire)
end
return {found, now}
