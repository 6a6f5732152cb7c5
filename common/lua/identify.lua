-- Which messages are meant by what workers said: an id where such a message is tracked, else the oldest with that xid.
--
-- KEYS names...   hash  two an entry: the record of the message with that id, the record of that xid (the same key twice
--                       where it can only be one of them)
-- ARGV ways...    what is said of it: `done` or `failed`, of which each one more with the same xid means the next message,
--                 or `touch`, which always means the oldest. A dead message has none behind it
-- Returns three an entry: id (empty: it is the id that was said), xid, the list for the answer; all false where there is
-- none. Run twice: the same again.
local found, chains, said = {}, {}, {done = {}, failed = {}, touch = {}}
for place, way in ipairs(ways) do
  local name, key = names[2 * place - 1], names[2 * place]
  local xid = redis.pcall('HGET', name, 'xid')
  local id, answer = false, false
  if type(xid) == 'string' then
    id = ''
  else
    xid = ''
    local nth = way == 'touch' and 1 or (said[way][key] or 0) + 1
    said[way][key] = nth
    chains[key] = chains[key] or {redis.pcall('HGET', key, 'id')}
    local chain = chains[key]
    while #chain < nth and type(chain[#chain]) == 'string' do
      chain[#chain + 1] = redis.call('HGET', key, 'next:' .. chain[#chain])
    end
    id = type(chain[nth]) == 'string' and chain[nth]
        or nth > 1 and type(chain[1]) == 'string' and redis.call('HGET', key, 'dead') and chain[1]
    answer = id and redis.call('HGET', key, 'replyTo:' .. id)
  end
  found[3 * place - 2], found[3 * place - 1], found[3 * place] = id, id and xid, answer
end
return found
