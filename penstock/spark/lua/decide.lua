-- Decide to apply the rows that the tasks of one batch have staged: no other rows of that batch are ever applied.
--
-- WITH types: wrong_type
-- KEYS ledger    hash   `batch`, the number of the last batch, and `staged`, the lists that its tasks staged, a line each
-- KEYS parts...  list   the rows of one task, the first at the tail
-- ARGV batch     the number of the batch
-- ARGV life      TTL of the ledger (s); 0 for none
-- ARGV counts... how many rows each part has
-- Returns 1; or 0 if other rows of this batch, or a later one, were decided on: then these are deleted. Run twice: 1
-- again.
local call = redis.call
local refused = wrong_type({hash = {ledger}})
if refused then return refused end
local known, staged = call('HMGET', ledger, 'batch', 'staged'), table.concat(parts, '\n')
if tonumber(known[1] or -1) >= tonumber(batch) then
  if known[2] == staged then return 1 end
  for _, part in ipairs(parts) do call('UNLINK', part) end
  return 0
end
for place, part in ipairs(parts) do
  if call('LLEN', part) ~= tonumber(counts[place]) then return redis.error_reply('UNSTAGED ' .. part) end
end
call('HSET', ledger, 'batch', batch, 'staged', staged)
if life ~= '0' then call('EXPIRE', ledger, life) end
for _, part in ipairs(parts) do call('PERSIST', part) end
return 1
