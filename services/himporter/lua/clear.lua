-- Clear pages.
--
-- FLAGS allow-oom
-- WITH types: wrong_type
-- KEYS pages       zset    pages, by when they end (s since the epoch)
-- KEYS cleared...  string  those to clear
-- Returns how many were kept. Run twice: the second run finds none.
local call = redis.call
local refused = wrong_type({zset = {pages}, string = cleared})
if refused then return refused end
local found = 0
for _, key in ipairs(cleared) do
  found = found + call('UNLINK', key)
  call('ZREM', pages, key)
end
return found
