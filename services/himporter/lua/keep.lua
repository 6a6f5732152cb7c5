-- Keep a page, unless it or one of its tags was cleared after it was asked.
--
-- WITH types: wrong_type
-- KEYS pages    zset    pages, by when they end (s since the epoch)
-- KEYS page     string  what `look.lua` returned
-- KEYS place    string  where to keep it: `page`, or for one that varies by headers a key of its own
-- KEYS tags...  string  since when pages with this tag are kept (s since the epoch)
-- ARGV mark     the first line of `page` when it was asked
-- ARGV asked    when it was asked (s since the epoch)
-- ARGV varies   which headers it varies by, for `page`; empty to leave `page` as it is
-- ARGV content  the page
-- ARGV life     how long it is kept (s)
-- ARGV most     most pages
-- Returns pages that are too many, up to 100: clear them. Run twice: the second run keeps the page as long again.
local call = redis.call
local strings = {page, place}
for _, tag in ipairs(tags) do strings[#strings + 1] = tag end
local refused = wrong_type({zset = {pages}, string = strings})
if refused then return refused end
if call('GETRANGE', page, 0, #mark) ~= mark .. '\n' then return {} end

-- Let `key` live for as long as the page, unless it lives longer.
local function live(key)
  if call('TTL', key) < tonumber(life) then call('EXPIRE', key, life) end
end

local time = call('TIME')
local are_open = true
for _, tag in ipairs(tags) do
  local since = call('GET', tag)
  if not since then call('SET', tag, string.format('%d.%06d', time[1], time[2])) end
  are_open = are_open and since and (tonumber(since) or math.huge) <= tonumber(asked)
  live(tag)
end
if not are_open then return {} end
if #varies > 0 then call('SET', page, varies) end
call('SET', place, content, 'EX', life)
live(page)
call('ZREMRANGEBYSCORE', pages, '-inf', time[1])
call('ZADD', pages, time[1] + life, place)
live(pages)
local surplus = math.min(100, call('ZCARD', pages) - most)
return surplus > 0 and call('ZRANGE', pages, 0, surplus - 1) or {}
