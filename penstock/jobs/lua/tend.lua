-- Look after one group of a stream: let jobs begin whose time has come, and claim what is to be tried again or was left.
--
-- WITH types: wrong_type
-- KEYS stream     stream  jobs
-- KEYS wait       zset    entries that are to be tried again, by when (s since the epoch); nobody claims them before
-- KEYS tries      hash    by entry the errors of its attempts (JSON); `<entry>:free` if the last one does not count;
--                         `<entry>:suspect` if it may have ended its consumer: how many such may be in one hand at a time,
--                         with ` out` behind it while it is in one; `died <consumer>`: how many that one had in hand
-- KEYS later      zset    jobs that wait for their time, by that time (s since the epoch)
-- KEYS repeats    zset    names of jobs that are repeated, by when they are due (s since the epoch)
-- KEYS paused     string  while it is there, no job of the stream begins
-- ARGV group      whose entries are claimed
-- ARGV consumer   who claims them
-- ARGV is_limited 1: the group has a limit; else what waits for a permit is claimed at once
-- ARGV most       maximum number of entries to claim
-- ARGV idle       how long nobody has had to renew an entry that is claimed (ms)
-- ARGV lost       the error of an attempt whose consumer has died (JSON)
-- ARGV attempts   after how many an entry is dead
-- ARGV from       where to go on looking for entries that were left (`-`: at the first one)
-- Returns the seconds until something is due, as text (empty: nothing is); the entries: id, number of the attempt, fields, and
-- `again`, `suspect` (it is to be alone, or among suspects) or `dead` (its attempts are used up); those that had been deleted;
-- 1 if the stream is paused; name and time of what is to be repeated; and where to go on looking for entries that were left.
-- Run twice: it claims others.
local call = redis.call
local PAGE, PAGES, MOVED, BYTES = 100, 10, 100, 1048576
local time = call('TIME')
local now = time[1] + time[2] / 1e6
local kinds = {}
local refused = wrong_type({stream = {stream}, zset = {wait, later, repeats}, hash = {tries}, string = {paused}}, kinds)
if refused then return refused end

local is_paused = kinds[paused] == 'none' and 0 or 1
local left = is_paused == 1 and 0 or tonumber(most)
if left > 0 then call('XPENDING', stream, group, '-', '+', 1) end -- no such group: an error before anything is written

-- Return what ZRANGEBYSCORE replies; ask nothing of a key that was not there.
local function range(key, ...)
  if kinds[key] == 'none' then return {} end
  return call('ZRANGEBYSCORE', key, ...)
end

-- Return the names and values of a job that waits; nil if it is none.
local function fields_of(member)
  local sound, found = pcall(cjson.decode, string.match(member, ' (.*)$') or '')
  if not sound or type(found) ~= 'table' or #found == 0 or #found % 2 == 1 then return end
  for _, word in ipairs(found) do
    if type(word) ~= 'string' and type(word) ~= 'number' then return end
  end
  return found
end

-- Until they have BYTES: one at first, then as many as fit by the average size so far, at most four times as many as before.
local moved, size, piece = 0, 0, 1
while piece > 0 and moved < MOVED and size < BYTES do
  local members = range(later, '-inf', now, 'LIMIT', 0, math.min(piece, MOVED - moved))
  for _, member in ipairs(members) do
    local fields = fields_of(member)
    if fields then
      call('XADD', stream, '*', unpack(fields, 1, #fields))
      call('ZREM', later, member)
    else
      call('ZADD', later, '+inf', member) -- no job of ours: it is never due, and stays for who has written it
    end
    moved, size = moved + 1, size + #member
  end
  piece = #members == 0 and 0 or math.max(1, math.min(4 * piece, math.floor((BYTES - size) * moved / (size + 1))))
end

local claimed, missing, claimed_bytes = {}, {}, 0

-- Note that the consumer of an entry has died.
local function note_death(id, attempt)
  local known = call('HGET', tries, id)
  local one = '{"attempt":' .. attempt .. ',"at":' .. string.format('%.3f', now) .. ',"error":' .. lost .. '}'
  call('HSET', tries, id, known and string.sub(known, 1, -2) .. ',' .. one .. ']' or '[' .. one .. ']')
end

local function claim(id, attempt, how)
  local found = call('XCLAIM', stream, group, consumer, 0, id, 'RETRYCOUNT', attempt)[1]
  call('ZREM', wait, id)
  if found and found[2] then
    claimed[#claimed + 1] = {id, attempt, found[2], how}
    for _, word in ipairs(found[2]) do claimed_bytes = claimed_bytes + #word end
    left = claimed_bytes < BYTES and left - 1 or 0
  else
    call('XACK', stream, group, id)
    call('HDEL', tries, id, id .. ':free', id .. ':suspect')
    missing[#missing + 1] = id
  end
end

local due = range(wait, '-inf', now, 'LIMIT', 0, left)
if is_limited ~= '1' and #due < left then
  for _, id in ipairs(range(wait, '+inf', '+inf', 'LIMIT', 0, left - #due)) do due[#due + 1] = id end
end
for _, id in ipairs(due) do
  if left <= 0 then break end
  local found = redis.pcall('XPENDING', stream, group, id, id, 1) -- an error for what is no id of an entry
  local owned = not found.err and found[1]
  if owned then claim(id, owned[4] + 1 - call('HDEL', tries, id .. ':free'), 'again') else
    call('ZREM', wait, id)
    call('HDEL', tries, id, id .. ':free', id .. ':suspect')
  end
end

-- Return how many entries `owner` has in hand still.
local function count_of(owner)
  local first, many = '-', 0
  for _ = 1, PAGES do
    local page = call('XPENDING', stream, group, first, '+', PAGE, owner)
    for _, each in ipairs(page) do
      if not call('ZSCORE', wait, each[1]) then many = many + 1 end
      first = '(' .. each[1]
    end
    if #page < PAGE then break end
  end
  return many
end

local counts = {}

-- Return how many entries `owner` had in hand when it died: others have taken some of them since, or it has died again.
local function held_by(owner)
  counts[owner] = counts[owner] or count_of(owner)
  local many = math.max(counts[owner], tonumber(call('HGET', tries, 'died ' .. owner) or 0))
  if owner ~= consumer then call('HSET', tries, 'died ' .. owner, string.format('%d', many)) end -- what it claims itself stays its own
  return many
end

local together, given = nil, 0

-- Claim an entry that its consumer has left. The death counts if that had nothing else in hand; else half of what it had
-- may be in one hand next, and then each has to be alone.
local function adopt(id, owner, attempt)
  local state = call('HGET', tries, id .. ':suspect')
  if not state then
    local held = held_by(owner)
    state = held == 1 and '1 out' or math.ceil(held / 2)
  end
  local many, out = string.match(state, '^(%d+)( ?)')
  local is_guilty = out ~= '' and many == '1'
  many = out ~= '' and 1 or tonumber(many)
  if is_guilty and attempt >= tonumber(attempts) then
    claim(id, attempt, 'dead')
  else
    if given > 0 and many ~= together then return end
    if is_guilty then
      note_death(id, attempt)
      attempt = attempt + 1
    end
    together, given = many, given + 1
    call('HSET', tries, id .. ':suspect', string.format('%d out', many))
    claim(id, attempt, 'suspect')
    if given >= together then left = 0 end
  end
  if owner == consumer then return end
  counts[owner] = counts[owner] and counts[owner] - 1 or count_of(owner)
  if counts[owner] == 0 then call('HDEL', tries, 'died ' .. owner) end
end

for _ = 1, PAGES do
  if left <= 0 then break end
  local page = call('XPENDING', stream, group, 'IDLE', idle, from, '+', PAGE)
  for _, found in ipairs(page) do
    if left > 0 and not call('ZSCORE', wait, found[1]) then adopt(found[1], found[2], found[4]) end
    from = '(' .. found[1]
  end
  if #page < PAGE then
    from = '-'
    break
  end
end

local to_repeat = range(repeats, '-inf', now, 'WITHSCORES', 'LIMIT', 0, MOVED)
local next_at = math.huge
for _, key in ipairs({wait, later, repeats}) do
  local after = key == repeats and '(' .. string.format('%.6f', now) or '-inf'  -- what is overdue is returned already
  local first = range(key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if first then next_at = math.min(next_at, tonumber(first)) end
end
return {next_at < math.huge and string.format('%.3f', math.max(0, next_at - now)) or '', claimed, missing, is_paused, to_repeat,
  from}
