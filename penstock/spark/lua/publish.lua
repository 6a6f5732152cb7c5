-- Append to a list the rows that the tasks of one batch have staged for it, those of the first task first. All or none.
--
-- WITH types: wrong_type
-- KEYS out       list   gets the rows, the first nearest to the tail
-- KEYS ledger    hash   by writer: the number of its last batch in `out`
-- KEYS parts...  list   the rows of one task, the first at the tail
-- ARGV writer    the id of the query, or of the job
-- ARGV batch     the number of the batch
-- ARGV replace   1 if the rows replace those in `out`, else 0
-- ARGV life      TTL of the ledger (s); 0 for none
-- ARGV counts... how many rows each part has
-- Returns 1, or 0 if this batch or a later one of the writer is in `out` already: then the staged rows are deleted. Run
-- twice: the second run adds nothing.
local PIECE = 256
local call = redis.call
local refused = wrong_type({list = {out}, hash = {ledger}})
if refused then return refused end
local last = call('HGET', ledger, writer)
if last and tonumber(last) >= tonumber(batch) then
  for _, part in ipairs(parts) do call('UNLINK', part) end
  return 0
end
for place, part in ipairs(parts) do
  if call('LLEN', part) ~= tonumber(counts[place]) then return redis.error_reply('UNSTAGED ' .. part) end
end

-- A full server refuses this write, before anything is moved.
call('HSET', ledger, writer, batch)
if life ~= '0' then call('EXPIRE', ledger, life) end
if replace == '1' then call('UNLINK', out) end

-- The longest list stays as it is: older rows go to its tail, newer ones to its head, and it becomes `out`.
local all, longest, most = {out, unpack(parts, 1, #parts)}, 1, call('LLEN', out)
for place in ipairs(parts) do
  local rows = tonumber(counts[place])
  if rows > most and call('TTL', out) < 0 then longest, most = place + 1, rows end
end
local part = all[longest]
for place = longest - 1, 1, -1 do
  local key = all[place]
  for _ = 1, call('LLEN', key), PIECE do
    local rows = call('LPOP', key, PIECE)
    call('RPUSH', part, unpack(rows, 1, #rows))
  end
end
for place = longest + 1, #all do
  local key = all[place]
  for _ = 1, call('LLEN', key), PIECE do
    local rows = call('RPOP', key, PIECE)
    call('LPUSH', part, unpack(rows, 1, #rows))
  end
end
if longest > 1 then
  call('RENAME', part, out)
  call('PERSIST', out)
end
return 1
