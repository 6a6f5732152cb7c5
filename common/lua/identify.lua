-- Which messages are meant by what workers said: an id where such a message is tracked, else the oldest with that xid.
--
-- KEYS names...   hash  two an entry: the record of the message with that id, the record of that xid (the same key twice
--                       where it can only be one of them)
-- ARGV nths...    which of those with that xid is meant, from 0: several entries may say the same xid
-- Returns three an entry: id (empty: it is the id that was said), xid, the list for the answer; all false where there is
-- none. Run twice: the same again.
local found, seen = {}, {}
for place, nth in ipairs(nths) do
  local name, key = names[2 * place - 1], names[2 * place]
  local xid = redis.pcall('HGET', name, 'xid')
  local id, answer = false, false
  if type(xid) == 'string' then
    id = ''
  else
    xid = ''
    seen[key] = seen[key] or {0, redis.pcall('HGET', key, 'id')}
    while type(seen[key][2]) == 'string' and seen[key][1] < tonumber(nth) do
      seen[key] = {seen[key][1] + 1, redis.call('HGET', key, 'next:' .. seen[key][2])}
    end
    id = type(seen[key][2]) == 'string' and seen[key][2]
    answer = id and redis.call('HGET', key, 'replyTo:' .. id)
  end
  found[3 * place - 2], found[3 * place - 1], found[3 * place] = id, id and xid, answer
end
return found
