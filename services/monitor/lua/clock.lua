-- Start the clocks of messages that workers have taken from a list; leave those that still wait in it without a deadline.
--
-- Workers take messages in the order in which they were pushed, so the message with number n waits in the list while n is
-- above the number of the last one that was pushed, less the length of the list.
--
-- WITH types: wrong_type
-- KEYS deadlines   zset   ids in flight by deadline (s since the epoch); those that wait untaken by UNTAKEN + their number
-- KEYS queue       list   what workers take from, at the tail
-- KEYS pushed      hash   the number of the last message that was pushed to a list, by the list's name
-- KEYS looks       hash   up to which number a list had been taken, and when: `number:seconds`, the oldest first, by name
-- KEYS overdue     hash   metric: messages that nobody had taken by their first deadline
-- KEYS subjects... hash   two a message: its record, and that of its xid; first those without a deadline, by number
-- ARGV timespan    how long a worker has (s)
-- ARGV expire      how long a record lives (s)
-- ARGV every       how often the caller runs this (s)
-- ARGV ids...      the ids of the messages
-- Returns 1 if the caller had better run it again at once, else 0; then the places of messages that are due though their
-- clock has run for `timespan`. Run twice: the same again.
local UNTAKEN, NEAR, MOST_BYTES = 1e12, 1000, 2097152
local call, pcall = redis.call, redis.pcall
local refused = wrong_type({list = {queue}, zset = {deadlines}, hash = {pushed, looks, overdue}})
if refused then return refused end
local time = call('TIME')
local now = time[1] + time[2] / 1e6
local last = tonumber(call('HGET', pushed, queue)) or 0
local waiting = call('LLEN', queue)
local taken = last - waiting

-- Return the place of a message from the tail of the list, at most `most`; nil if it is not there.
local looked_at = 0
local function place_of(record, most)
  local message = pcall('HGET', record, 'message')
  if type(message) ~= 'string' then return end
  looked_at = looked_at + #message
  if most > NEAR then return call('LINDEX', queue, -most) == message and most end
  local found = call('LPOS', queue, message, 'RANK', -1, 'MAXLEN', most)
  return found and waiting - found
end

local function start(place, since, seconds)
  local record, key = subjects[2 * place - 1], subjects[2 * place]
  local deadline = string.format('%.6f', since + seconds + place * 1e-6)
  call('ZADD', deadlines, deadline, ids[place])
  if type(pcall('HGET', record, 'attempt')) ~= 'string' then return end
  call('HSET', record, 'taken', string.format('%.6f', since), 'deadline', deadline)
  if call('PTTL', record) < expire * 1000 then call('EXPIRE', record, expire) end
  local chain = pcall('HMGET', key, 'id', 'last')
  if not chain.err and chain[1] and (not chain[2] or chain[1] == chain[2]) and call('PTTL', key) < expire * 1000 then
    call('EXPIRE', key, expire)
  end
end

-- Those without a deadline. What is not where its number says is taken for taken; somebody else may have pushed to the
-- list, so that the oldest lies nearer to the tail than its number says: then those between were not ours.
local known, gone, certain = {}, {}, false
for place, id in ipairs(ids) do
  local score = tonumber(call('ZSCORE', deadlines, id) or -1)
  local number = score - UNTAKEN
  known[place] = score
  if number >= 0 and not certain and number > taken and number <= last and looked_at < MOST_BYTES then
    local found = place_of(subjects[2 * place - 1], number - taken)
    if found then
      certain = true
      if found < number - taken then
        last, taken = last + number - taken - found, number - found
        call('HSET', pushed, queue, string.format('%d', last))
      end
    else
      gone[place] = true
    end
  end
end
for place in ipairs(ids) do
  local number = known[place] - UNTAKEN
  if number >= 0 and (gone[place] or number <= taken or number > last) then start(place, now, timespan) end
end

-- Record when `taken` messages had been taken, at the latest.
local seen = {}
for number, moment in string.gmatch(call('HGET', looks, queue) or '', '(%-?%d+):([%d%.]+)') do
  if tonumber(number) <= taken then seen[#seen + 1] = {tonumber(number), tonumber(moment)} end
end
local newest = seen[#seen]
if not newest or newest[1] < taken and (taken == last or newest[2] <= now - every / 2) then seen[#seen + 1] = {taken, now} end
while seen[2] and seen[2][2] < now - timespan do table.remove(seen, 1) end
local words = {}
for place, look in ipairs(seen) do words[place] = string.format('%d:%.6f', look[1], look[2]) end
words = table.concat(words, ' ')
if words ~= call('HGET', looks, queue) then call('HSET', looks, queue, words) end

local function taken_at(number)
  for _, look in ipairs(seen) do
    if look[1] >= number then return look[2] end
  end
  return now
end

-- What a worker has for this attempt: less than it was delivered with, if the policy has changed since, but never more.
local function allowed(record)
  local moments = call('HMGET', record, 'deadline', 'delivered', 'timestamp')
  local begun = tonumber(moments[2] or moments[3] or '')
  return math.min(timespan, begun and (tonumber(moments[1] or '') or math.huge) - begun or math.huge)
end

local outcome = {next(gone) and not certain and 1 or 0}
for place, id in ipairs(ids) do
  local record = subjects[2 * place - 1]
  local key = subjects[2 * place]
  local own = known[place] >= 0 and known[place] <= now and pcall('HMGET', record, 'number', 'taken', 'queue', 'error')
  local number = own and not own.err and not own[2] and not own[4] and own[3] == queue and tonumber(own[1])
  if number and number > taken and number <= last then
    call('ZADD', deadlines, string.format('%d', UNTAKEN + number), id)
    call('PERSIST', record)
    call('PERSIST', key)
    pcall('HINCRBY', overdue, 'count', 1)
  elseif number and number <= taken and taken_at(number) + allowed(record) > now then
    start(place, taken_at(number), allowed(record))
  elseif own then
    outcome[#outcome + 1] = place
  end
end
return outcome
