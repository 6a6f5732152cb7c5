-- Find the messages that workers mean: the oldest with that xid, or the one with that id.
--
-- KEYS names...   hash  three an entry: the record of the message with that id, the record of that xid (the same key twice
--                       if it can only be one of them), and of another xid that it may stand for (else the second again):
--                       that one counts unless it is of a number in `meta.id`
-- ARGV prefix     how many bytes of the name of an xid's record come before the xid
-- ARGV ways...    what an entry reports: `done` or `failed`, of which each further one with the same xid means the next
--                 message, or `touch`, which always means the oldest. A dead message has none after it
-- Returns four an entry: id (empty if it is the id that was given), xid, the list for the answer, and 1 if the number that
-- was taken for an xid is the id of a message, too; the first three are false if no message is meant. Run twice: the
-- same again.
local found, chains, said = {}, {}, {done = {}, failed = {}, touch = {}}

-- Return the xid of the message with that record, in flight or dead; else false.
local function tracked(record)
  local xid = redis.pcall('HGET', record, 'xid')
  return type(xid) == 'string' and xid
end

-- Return the id of the message with that xid, in flight or dead.
local function called(key, way)
  local nth = way == 'touch' and 1 or (said[way][key] or 0) + 1
  said[way][key] = nth
  chains[key] = chains[key] or {redis.pcall('HGET', key, 'id')}
  local chain = chains[key]
  while #chain < nth and type(chain[#chain]) == 'string' do
    chain[#chain + 1] = redis.call('HGET', key, 'next:' .. chain[#chain])
  end
  return type(chain[nth]) == 'string' and chain[nth]
      or nth > 1 and type(chain[1]) == 'string' and redis.call('HGET', key, 'dead') and chain[1]
end

for place, way in ipairs(ways) do
  local record, key, other = names[3 * place - 2], names[3 * place - 1], names[3 * place]
  local either = record ~= key
  local xid = not either and tracked(record)
  local id = not xid and called(key, way)
  if not xid and not id and other ~= key and redis.pcall('HGET', other, 'type') ~= 'metaNumber' then
    id, key, xid = called(other, way), other, string.sub(other, prefix + 1)
  end
  if not id then
    xid = tracked(record)
    id = xid and ''
  end
  local answer = id and id ~= '' and redis.call('HGET', key, 'replyTo:' .. id)
  found[4 * place - 3], found[4 * place - 2], found[4 * place - 1] = id, id and (xid or ''), answer
  found[4 * place] = id and id ~= '' and either and tracked(record) and 1 or 0
end
return found
